/* Per-sample gradients of `two_layer_cnn`, row after row (see `cnn_rows.py`).
 *
 * Channels lie innermost, so that 16 of them are two vectors, and every product here has one form:
 * numbers that are spread, times vectors (`strip`). All that belongs to a row stays in the cache.
 * Sums are rounded in other places than torch's: the same numbers but for that. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float eight __attribute__((vector_size(32)));
typedef float anywhere __attribute__((vector_size(32), aligned(4)));
typedef int32_t mask __attribute__((vector_size(32)));

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2,fma")))
#define PLUS(a, b, c) ((eight)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define LARGER(a, b) ((eight)_mm256_max_ps((__m256)(a), (__m256)(b)))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
/* Where 16 floats fit a vector. */
#define WIDER __attribute__((target("avx512f,avx2,fma")))
#define PLUS16(a, b, c) ((sixteen)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
typedef float sixteen __attribute__((vector_size(64)));
typedef float anywhere16 __attribute__((vector_size(64), aligned(4)));
#elif defined(__GNUC__)
#define FAST
#define PLUS(a, b, c) ((a) * (b) + (c))
#define LARGER(a, b) ((eight)((((a) > (b)) & (mask)(a)) | (~((a) > (b)) & (mask)(b))))
int winsor_supported(void) { return 1; }
#else
#error "vectors of gcc and clang"
#endif

#define INSIDE inline __attribute__((always_inline))
#define AT(p) (*(anywhere *)(p))
#define SEE(p) (*(const anywhere *)(p))
#define SPREAD(x) ((eight){(x), (x), (x), (x), (x), (x), (x), (x)})

enum {
    IMAGE = 28, PAD = 3, WIDE = IMAGE + 2 * PAD,
    C1 = 16, S1 = 14, P1 = 13, /* channels, side after the convolution, side after pooling */
    C2 = 32, S2 = 5, P2 = 4,
    FLAT = P2 * P2 * C2, HIDDEN = 32, CLASSES = 10,
    TAPS1 = 64, TAPS2 = 16 * C1,
    GROUPS = 4
};
/* The gradients of a row, in floats. */
enum { ROW_W1 = 0, ROW_N1 = TAPS1 * C1, ROW_W2 = ROW_N1 + 3 * C1, ROW_N2 = ROW_W2 + TAPS2 * C2,
       ROW = ROW_N2 + 3 * C2 };
/* Parameters as torch has them, one after the other. */
enum { W1 = 0, B1 = C1 * TAPS1, GAMMA1 = B1 + C1, BETA1 = GAMMA1 + C1, W2 = BETA1 + C1,
       B2 = W2 + C2 * TAPS2, GAMMA2 = B2 + C2, BETA2 = GAMMA2 + C2, W3 = BETA2 + C2,
       B3 = W3 + HIDDEN * FLAT, W4 = B3 + HIDDEN, B4 = W4 + CLASSES * HIDDEN };

/* sum[p] += sum_k spread[p between + k along] * (16 floats at vectors + k step), p < count. */
static FAST INSIDE void strip(int count, const float *spread, int between, int along,
                              const float *vectors, int step, int terms, eight sum[][2]) {
#pragma GCC unroll 1 /* more, and gcc runs out of registers */
    for (int k = 0; k < terms; k++) {
        eight first = SEE(vectors + k * step), second = SEE(vectors + k * step + 8);
#pragma GCC unroll 8
        for (int p = 0; p < count; p++) {
            eight one = SPREAD(spread[p * between + k * along]);
            sum[p][0] = PLUS(one, first, sum[p][0]);
            sum[p][1] = PLUS(one, second, sum[p][1]);
        }
    }
}

/* The image within zeros; `dark` are its rows without a pixel, which add nothing to any product. */
static FAST INSIDE void padded(const float *image, float *wide, uint8_t *dark) {
    memset(wide, 0, WIDE * WIDE * sizeof(float));
    memset(dark, 1, WIDE);
    for (int y = 0; y < IMAGE; y++) {
        const float *from = image + y * IMAGE;
        memcpy(wide + (y + PAD) * WIDE + PAD, from, IMAGE * sizeof(float));
        for (int x = 0; x < IMAGE; x++) dark[y + PAD] &= from[x] == 0;
    }
}

/* Every channel gets the total of its group. */
static INSIDE void over_groups(const float *each, int channels, float *total) {
    int width = channels / GROUPS;
    for (int c = 0; c < channels; c += width) {
        float sum = 0;
        for (int i = 0; i < width; i++) sum += each[c + i];
        for (int i = 0; i < width; i++) total[c + i] = sum;
    }
}

/* GroupNorm, ReLU, and the largest of 2 x 2 neighbours. x: in, values; out, normalised. */
static FAST INSIDE void norm_and_pool(float *x, int side, int channels, const float *gamma,
                                      const float *beta, float *inverse, float *h) {
    float each[C2], mean[C2], y[S1 * S1 * C1] __attribute__((aligned(32)));
    const float share = 1.0f / (side * side * (channels / GROUPS));
    for (int c = 0; c < channels; c += 8) {
        eight sum = {0}, other = {0};
        int at = 0;
        for (; at + 1 < side * side; at += 2) {
            sum += SEE(x + at * channels + c);
            other += SEE(x + (at + 1) * channels + c);
        }
        for (; at < side * side; at++) sum += SEE(x + at * channels + c);
        AT(each + c) = sum + other;
    }
    over_groups(each, channels, mean);
    for (int c = 0; c < channels; c++) mean[c] *= share;
    for (int c = 0; c < channels; c += 8) {
        eight sum = {0}, middle = SEE(mean + c);
        for (int at = 0; at < side * side; at++) {
            eight away = SEE(x + at * channels + c) - middle;
            AT(x + at * channels + c) = away;
            sum = PLUS(away, away, sum);
        }
        AT(each + c) = sum;
    }
    over_groups(each, channels, inverse);
    for (int c = 0; c < channels; c++) inverse[c] = 1.0f / sqrtf(inverse[c] * share + 1e-5f);
    for (int c = 0; c < channels; c += 8) {
        eight scale = SEE(inverse + c), g = SEE(gamma + c), b = SEE(beta + c);
        for (int at = 0; at < side * side; at++) {
            eight unit = SEE(x + at * channels + c) * scale;
            AT(x + at * channels + c) = unit;
            AT(y + at * channels + c) = PLUS(unit, g, b);
        }
    }
    for (int i = 0; i < side - 1; i++)
        for (int j = 0; j < (side - 1) * channels; j += 8) {
            const float *from = y + i * side * channels + j;
            eight left = LARGER(SEE(from), SEE(from + side * channels));
            eight right = LARGER(SEE(from + channels), SEE(from + (side + 1) * channels));
            AT(h + i * (side - 1) * channels + j) = LARGER(LARGER(left, right), SPREAD(0.0f));
        }
}

/* Back through `norm_and_pool`. e: gradients at the convolution's output; `three`: those of its
 * bias, of gamma and of beta. Among equals the first neighbour is the largest, as in torch. */
static FAST INSIDE void back_to_convolution(const float *x, int side, int channels,
                                            const float *gamma, const float *beta,
                                            const float *inverse, const float *h, const float *dh,
                                            float *e, float *three) {
    float y[S1 * S1 * C1] __attribute__((aligned(32))), each[C2], a[C2], b[C2];
    const float share = 1.0f / (side * side * (channels / GROUPS));
    for (int c = 0; c < channels; c += 8) {
        eight g = SEE(gamma + c), shift = SEE(beta + c);
        for (int at = 0; at < side * side; at++)
            AT(y + at * channels + c) = PLUS(SEE(x + at * channels + c), g, shift);
    }
    memset(e, 0, side * side * channels * sizeof(float));
    const int places[4] = {0, channels, side * channels, (side + 1) * channels};
    for (int i = 0; i < side - 1; i++)
        for (int j = 0; j < (side - 1) * channels; j += 8) {
            int from = i * side * channels + j, to = i * (side - 1) * channels + j;
            eight most = SEE(h + to);
            mask left = (most > SPREAD(0.0f)) & (mask)SEE(dh + to);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                mask here = (eight)SEE(y + from + places[q]) == most;
                AT(e + from + places[q]) += (eight)(left & here);
                left &= ~here;
            }
        }
    float *bias = three, *scales = three + channels, *shifts = three + 2 * channels;
    for (int c = 0; c < channels; c += 8) {
        eight sum = {0}, along = {0};
        for (int at = 0; at < side * side; at++) {
            eight dy = SEE(e + at * channels + c);
            sum += dy;
            along = PLUS(dy, SEE(x + at * channels + c), along);
        }
        AT(scales + c) = along;
        AT(shifts + c) = sum;
    }
    for (int c = 0; c < channels; c++) each[c] = gamma[c] * shifts[c] * share;
    over_groups(each, channels, a);
    for (int c = 0; c < channels; c++) each[c] = gamma[c] * scales[c] * share;
    over_groups(each, channels, b);
    for (int c = 0; c < channels; c += 8) {
        eight sum = {0}, g = SEE(gamma + c), scale = SEE(inverse + c);
        eight level = SEE(a + c), slope = SEE(b + c);
        for (int at = 0; at < side * side; at++) {
            eight own = SEE(e + at * channels + c) * g - level;
            own = (own - SEE(x + at * channels + c) * slope) * scale;
            AT(e + at * channels + c) = own;
            sum += own;
        }
        AT(bias + c) = sum;
    }
}

static FAST INSIDE float square(const float *values, int count) {
    eight sum[2] = {{0}};
    for (int i = 0; i < count; i += 16)
        for (int v = 0; v < 2; v++) {
            eight own = SEE(values + i + 8 * v);
            sum[v] = PLUS(own, own, sum[v]);
        }
    sum[0] += sum[1];
    float total = 0;
    for (int i = 0; i < 8; i++) total += sum[0][i];
    return total;
}

/* `count` places of a row of the first convolution's output, side by side. */
static FAST INSIDE void first_places(int count, const float *wide, const uint8_t *dark,
                                     const float *w, const float *bias, float *to) {
    eight sum[5][2];
    for (int p = 0; p < count; p++) sum[p][0] = SEE(bias), sum[p][1] = SEE(bias + 8);
    for (int k = 0; k < 8; k++)
        if (!dark[k]) strip(count, wide + k * WIDE, 2, 1, w + k * 8 * C1, C1, 8, sum);
    for (int p = 0; p < count; p++) AT(to + p * C1) = sum[p][0], AT(to + p * C1 + 8) = sum[p][1];
}

static FAST void first_convolution(const float *wide, const uint8_t *dark, const float *w,
                                   const float *bias, float *out) {
    for (int y = 0; y < S1; y++) { /* 5 + 5 + 4 places: with more the registers do not suffice */
        const float *from = wide + 2 * y * WIDE;
        float *to = out + y * S1 * C1;
        first_places(5, from, dark + 2 * y, w, bias, to);
        first_places(5, from + 10, dark + 2 * y, w, bias, to + 5 * C1);
        first_places(4, from + 20, dark + 2 * y, w, bias, to + 10 * C1);
    }
}

static FAST void first_gradient(const float *wide, const uint8_t *dark, const float *e,
                                float *out) {
    for (int k = 0; k < 8; k++)
        for (int l = 0; l < 8; l += 4) {
            eight sum[4][2] = {{{0}}};
            for (int y = 0; y < S1; y++) {
                if (dark[2 * y + k]) continue;
                strip(4, wide + (2 * y + k) * WIDE + l, 1, 2, e + y * S1 * C1, C1, S1, sum);
            }
            float *to = out + (k * 8 + l) * C1;
            for (int p = 0; p < 4; p++) AT(to + p * C1) = sum[p][0], AT(to + p * C1 + 8) = sum[p][1];
        }
}

static FAST void second_convolution(const float *h, const float *w, const float *bias, float *out) {
    for (int half = 0; half < C2; half += 16)
        for (int y = 0; y < S2; y++) {
            eight sum[S2][2];
            for (int p = 0; p < S2; p++)
                sum[p][0] = SEE(bias + half), sum[p][1] = SEE(bias + half + 8);
            for (int k = 0; k < 4; k++)
                strip(S2, h + (2 * y + k) * P1 * C1, 2 * C1, 1, w + k * 4 * C1 * C2 + half, C2,
                      4 * C1, sum);
            float *to = out + y * S2 * C2 + half;
            for (int p = 0; p < S2; p++)
                AT(to + p * C2) = sum[p][0], AT(to + p * C2 + 8) = sum[p][1];
        }
}

static FAST void second_gradient(const float *h, const float *e, float *out) {
    for (int half = 0; half < C2; half += 16)
        for (int k = 0; k < 4; k++)
            for (int l = 0; l < 4 * C1; l += 4) {
                eight sum[4][2] = {{{0}}};
                for (int y = 0; y < S2; y++)
                    strip(4, h + (2 * y + k) * P1 * C1 + l, 1, 2 * C1, e + y * S2 * C2 + half, C2,
                          S2, sum);
                float *to = out + (k * 4 * C1 + l) * C2 + half;
                for (int p = 0; p < 4; p++)
                    AT(to + p * C2) = sum[p][0], AT(to + p * C2 + 8) = sum[p][1];
            }
}

/* w: (4, 4, 32, 16), channels of the input innermost. */
static FAST void second_input(const float *e, const float *w, float *dh) {
    memset(dh, 0, P1 * P1 * C1 * sizeof(float));
    for (int y = 0; y < S2; y++)
        for (int tap = 0; tap < 16; tap++) {
            eight sum[S2][2] = {{{0}}};
            strip(S2, e + y * S2 * C2, C2, 1, w + tap * C2 * C1, C1, C2, sum);
            float *to = dh + ((2 * y + tap / 4) * P1 + tap % 4) * C1;
            for (int p = 0; p < S2; p++) {
                AT(to + p * 2 * C1) += sum[p][0];
                AT(to + p * 2 * C1 + 8) += sum[p][1];
            }
        }
}

#ifdef WIDER
#define AT16(p) (*(anywhere16 *)(p))
#define SEE16(p) (*(const anywhere16 *)(p))

/* The same products by vectors of 16. Every number is added up in the order in which it is above,
 * so both ways agree to the last bit; more places side by side hide the latency of a sum.
 *
 * sum[p][v] += sum_k spread[p between + k along] * (16 floats at vectors + k step + v apart), v < 2;
 * v < 1 where `apart` is 0. */
static WIDER INSIDE void strip16(int count, const float *spread, int between, int along,
                                 const float *vectors, int apart, int step, int terms,
                                 sixteen sum[][2]) {
#pragma GCC unroll 1
    for (int k = 0; k < terms; k++) {
        sixteen first = SEE16(vectors + k * step), second = SEE16(vectors + apart + k * step);
#pragma GCC unroll 14
        for (int p = 0; p < count; p++) {
            sixteen one = (sixteen)_mm512_set1_ps(spread[p * between + k * along]);
            sum[p][0] = PLUS16(one, first, sum[p][0]);
            if (apart) sum[p][1] = PLUS16(one, second, sum[p][1]);
        }
    }
}

static WIDER void first_convolution16(const float *wide, const uint8_t *dark, const float *w,
                                      const float *bias, float *out) {
    for (int y = 0; y < S1; y++) {
        sixteen sum[S1][2];
        for (int p = 0; p < S1; p++) sum[p][0] = SEE16(bias);
        for (int k = 0; k < 8; k++)
            if (!dark[2 * y + k])
                strip16(S1, wide + (2 * y + k) * WIDE, 2, 1, w + k * 8 * C1, 0, C1, 8, sum);
        for (int p = 0; p < S1; p++) AT16(out + (y * S1 + p) * C1) = sum[p][0];
    }
}

static WIDER void first_gradient16(const float *wide, const uint8_t *dark, const float *e,
                                   float *out) {
    for (int k = 0; k < 8; k++) {
        sixteen sum[8][2] = {{{0}}};
        for (int y = 0; y < S1; y++)
            if (!dark[2 * y + k])
                strip16(8, wide + (2 * y + k) * WIDE, 1, 2, e + y * S1 * C1, 0, C1, S1, sum);
        for (int l = 0; l < 8; l++) AT16(out + (k * 8 + l) * C1) = sum[l][0];
    }
}

static WIDER void second_convolution16(const float *h, const float *w, const float *bias,
                                       float *out) {
    for (int y = 0; y < S2; y++) {
        sixteen sum[S2][2];
        for (int p = 0; p < S2; p++) sum[p][0] = SEE16(bias), sum[p][1] = SEE16(bias + 16);
        for (int k = 0; k < 4; k++)
            strip16(S2, h + (2 * y + k) * P1 * C1, 2 * C1, 1, w + k * 4 * C1 * C2, 16, C2, 4 * C1,
                    sum);
        float *to = out + y * S2 * C2;
        for (int p = 0; p < S2; p++)
            AT16(to + p * C2) = sum[p][0], AT16(to + p * C2 + 16) = sum[p][1];
    }
}

static WIDER void second_gradient16(const float *h, const float *e, float *out) {
    for (int k = 0; k < 4; k++)
        for (int l = 0; l < 4 * C1; l += 8) {
            sixteen sum[8][2] = {{{0}}};
            for (int y = 0; y < S2; y++)
                strip16(8, h + (2 * y + k) * P1 * C1 + l, 1, 2 * C1, e + y * S2 * C2, 16, C2, S2,
                        sum);
            float *to = out + (k * 4 * C1 + l) * C2;
            for (int p = 0; p < 8; p++)
                AT16(to + p * C2) = sum[p][0], AT16(to + p * C2 + 16) = sum[p][1];
        }
}

static WIDER void second_input16(const float *e, const float *w, float *dh) {
    memset(dh, 0, P1 * P1 * C1 * sizeof(float));
    for (int y = 0; y < S2; y++)
        for (int tap = 0; tap < 16; tap += 2) {
            sixteen sum[S2][2] = {{{0}}};
            strip16(S2, e + y * S2 * C2, C2, 1, w + tap * C2 * C1, C2 * C1, C1, C2, sum);
            float *to = dh + ((2 * y + tap / 4) * P1 + tap % 4) * C1;
            for (int v = 0; v < 2; v++)
                for (int p = 0; p < S2; p++) AT16(to + (2 * p + v) * C1) += sum[p][v];
        }
}

/* `along` for 16 or 32 channels, 7 directions at a time. */
static WIDER void along16(const float *g, int64_t taps, int64_t channels, const float *v,
                          int64_t blocks, float *out) {
    for (int64_t b = 0; b < blocks; b++) {
        sixteen sum[7][2] = {{{0}}};
        if (channels == 32)
            strip16(7, v + 7 * b, 1, 7 * blocks, g, 16, channels, taps, sum);
        else
            strip16(7, v + 7 * b, 1, 7 * blocks, g, 0, channels, taps, sum);
        for (int p = 0; p < 7; p++)
            for (int half = 0; half < channels / 16; half++)
                AT16(out + (7 * b + p) * channels + 16 * half) = sum[p][half];
    }
}
#endif

static FAST void along8(const float *g, int64_t taps, int64_t channels, const float *v,
                        int64_t blocks, float *out) {
    for (int64_t c = 0; c < channels; c += 16)
        for (int64_t b = 0; b < blocks; b++) {
            eight sum[7][2] = {{{0}}};
            strip(7, v + 7 * b, 1, 7 * blocks, g + c, channels, taps, sum);
            float *to = out + b * 7 * channels + c;
            for (int p = 0; p < 7; p++)
                AT(to + p * channels) = sum[p][0], AT(to + p * channels + 8) = sum[p][1];
        }
}

/* How the large products are formed on this processor. */
typedef struct {
    void (*first_convolution)(const float *, const uint8_t *, const float *, const float *, float *);
    void (*first_gradient)(const float *, const uint8_t *, const float *, float *);
    void (*second_convolution)(const float *, const float *, const float *, float *);
    void (*second_gradient)(const float *, const float *, float *);
    void (*second_input)(const float *, const float *, float *);
    void (*along)(const float *, int64_t, int64_t, const float *, int64_t, float *);
} products_t;

static const products_t by_8 = {first_convolution, first_gradient, second_convolution,
                                second_gradient,   second_input,   along8};
#ifdef WIDER
static const products_t by_16 = {first_convolution16, first_gradient16, second_convolution16,
                                 second_gradient16,   second_input16,   along16};
#endif
static const products_t *products = &by_8;

/* Vectors of at most `floats` floats, 8 or 16, are used from now on. What there is: 8 or 16. */
int winsor_use(int floats) {
    products = &by_8;
#ifdef WIDER
    if (floats == 16 && __builtin_cpu_supports("avx512f")) products = &by_16;
#endif
    return products == &by_8 ? 8 : 16;
}

/* A loss: weight of the label's class times cross-entropy of scale (logits - margin of it). */
typedef struct {
    float scale, margins[CLASSES], weights[CLASSES];
} loss_t;

/* A row's loss, and its gradient at the logits. */
static float loss_of(const float *logits, int64_t label, const loss_t *loss, float *e) {
    float most = -INFINITY, sum = 0, z[CLASSES];
    for (int c = 0; c < CLASSES; c++) {
        z[c] = loss->scale * (logits[c] - (c == label ? loss->margins[c] : 0.0f));
        if (!(z[c] <= most)) most = z[c];
    }
    for (int c = 0; c < CLASSES; c++) sum += e[c] = expf(z[c] - most);
    float weight = loss->weights[label];
    for (int c = 0; c < CLASSES; c++)
        e[c] = weight * loss->scale * (e[c] / sum - (c == label));
    return weight * (logf(sum) + most - z[label]);
}

/* What the linear layers leave: input (n, 512) and gradients (n, 32) at the output of the first,
 * input (n, 32) and gradients (n, 10) of the second, losses (n). */
typedef struct {
    float *h, *e3, *a, *e4, *losses;
} linear_t;

/* From the pooled (4, 4, 32) of a row to the loss, and back to its gradient; w3: (512, 32). */
static FAST INSIDE void head(int64_t row, int64_t label, const float *p, const float *w3,
                             const loss_t *loss, const linear_t *out, float *pooled) {
    float *h = out->h + row * FLAT, *e3 = out->e3 + row * HIDDEN, *a = out->a + row * HIDDEN;
    float *e4 = out->e4 + row * CLASSES, logits[CLASSES], back[FLAT];
    for (int at = 0; at < P2 * P2; at++)
        for (int c = 0; c < C2; c++) h[c * P2 * P2 + at] = pooled[at * C2 + c];
    for (int half = 0; half < HIDDEN; half += 16) {
        eight sum[4][2] = {{{0}}};
        for (int k = 0; k < FLAT / 4; k++)
#pragma GCC unroll 4
            for (int part = 0; part < 4; part++) { /* so that no sum waits for the one before */
                int at = part * FLAT / 4 + k;
                eight one = SPREAD(h[at]);
                sum[part][0] = PLUS(one, SEE(w3 + at * HIDDEN + half), sum[part][0]);
                sum[part][1] = PLUS(one, SEE(w3 + at * HIDDEN + half + 8), sum[part][1]);
            }
        for (int v = 0; v < 2; v++)
            AT(a + half + 8 * v) =
                SEE(p + B3 + half + 8 * v) + ((sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]));
    }
    for (int j = 0; j < HIDDEN; j++) a[j] = a[j] > 0 || a[j] != a[j] ? a[j] : 0.0f;
    for (int c = 0; c < CLASSES; c++) {
        logits[c] = p[B4 + c];
        for (int j = 0; j < HIDDEN; j++) logits[c] += p[W4 + c * HIDDEN + j] * a[j];
    }
    out->losses[row] = loss_of(logits, label, loss, e4);
    for (int j = 0; j < HIDDEN; j++) {
        e3[j] = 0;
        for (int c = 0; c < CLASSES; c++) e3[j] += e4[c] * p[W4 + c * HIDDEN + j];
        if (a[j] == 0) e3[j] = 0;
    }
    for (int k = 0; k < FLAT; k += 64) {
        eight sum[8] = {{0}};
        for (int j = 0; j < HIDDEN; j++)
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++)
                sum[v] = PLUS(SPREAD(e3[j]), SEE(p + W3 + j * FLAT + k + 8 * v), sum[v]);
        for (int v = 0; v < 8; v++) AT(back + k + 8 * v) = sum[v];
    }
    for (int at = 0; at < P2 * P2; at++)
        for (int c = 0; c < C2; c++) pooled[at * C2 + c] = back[c * P2 * P2 + at];
}

static float length2(const float *values, int count) {
    float total = 0;
    for (int i = 0; i < count; i++) total += values[i] * values[i];
    return total;
}

/* One batch, forward and back. images: (n, 28, 28); p: the parameters of the model. rows: (n, ROW),
 * gradients up to the linear layers; squares: (n), squared lengths of whole gradients. */
FAST void winsor_rows(const float *images, const int64_t *labels, int64_t n, const float *p,
                      const loss_t *loss, float *rows, float *squares, const linear_t *linear) {
    float w1[TAPS1 * C1], w2[TAPS2 * C2], back2[TAPS2 * C2], w3[FLAT * HIDDEN];
    float wide[WIDE * WIDE], x1[S1 * S1 * C1], h1[P1 * P1 * C1], x2[S2 * S2 * C2], h2[FLAT];
    float e1[S1 * S1 * C1], dh1[P1 * P1 * C1], e2[S2 * S2 * C2], pooled[FLAT], r1[C1], r2[C2];
    uint8_t dark[WIDE];
    for (int c = 0; c < C1; c++)
        for (int k = 0; k < TAPS1; k++) w1[k * C1 + c] = p[W1 + c * TAPS1 + k];
    for (int c = 0; c < C2; c++)
        for (int i = 0; i < C1; i++)
            for (int k = 0; k < 16; k++) {
                float value = p[W2 + (c * C1 + i) * 16 + k];
                w2[(k * C1 + i) * C2 + c] = back2[(k * C2 + c) * C1 + i] = value;
            }
    for (int j = 0; j < HIDDEN; j++)
        for (int k = 0; k < FLAT; k++) w3[k * HIDDEN + j] = p[W3 + j * FLAT + k];
    for (int64_t row = 0; row < n; row++) {
        float *to = rows + row * ROW;
        padded(images + row * IMAGE * IMAGE, wide, dark);
        products->first_convolution(wide, dark, w1, p + B1, x1);
        norm_and_pool(x1, S1, C1, p + GAMMA1, p + BETA1, r1, h1);
        products->second_convolution(h1, w2, p + B2, x2);
        norm_and_pool(x2, S2, C2, p + GAMMA2, p + BETA2, r2, h2);
        memcpy(pooled, h2, sizeof h2);
        head(row, labels[row], p, w3, loss, linear, pooled);
        back_to_convolution(x2, S2, C2, p + GAMMA2, p + BETA2, r2, h2, pooled, e2, to + ROW_N2);
        products->second_gradient(h1, e2, to + ROW_W2);
        products->second_input(e2, back2, dh1);
        back_to_convolution(x1, S1, C1, p + GAMMA1, p + BETA1, r1, h1, dh1, e1, to + ROW_N1);
        products->first_gradient(wide, dark, e1, to + ROW_W1);
        squares[row] = square(to, ROW) +
                       length2(linear->e3 + row * HIDDEN, HIDDEN) *
                           (square(linear->h + row * FLAT, FLAT) + 1) +
                       length2(linear->e4 + row * CLASSES, CLASSES) *
                           (square(linear->a + row * HIDDEN, HIDDEN) + 1);
    }
}

/* out: (n, 7 blocks, channels) = v' G of every row, where G (taps, channels) begins at `offset` of
 * its gradients and v is (taps, 7 blocks). */
void winsor_along(const float *rows, int64_t n, int64_t offset, int64_t taps, int64_t channels,
                  const float *v, int64_t blocks, float *out) {
    for (int64_t row = 0; row < n; row++)
        products->along(rows + row * ROW + offset, taps, channels, v, blocks,
                        out + row * blocks * 7 * channels);
}
