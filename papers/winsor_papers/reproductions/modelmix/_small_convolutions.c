/* Convolutions of 3 x 3 with 4 x 4 places at the output, row after row (see `small_convolutions.py`).
 *
 * Channels of the output lie innermost, so that they are vectors, and every product has one form:
 * numbers that are spread, times vectors. A row with its padding stays in the cache. The file
 * includes itself, for vectors of 16 floats and for vectors of 8. */

#ifndef LANES

#include <stdint.h>
#include <string.h>

#define INSIDE inline __attribute__((always_inline))
enum { PLACES = 16, SIDE = 4, TAPS = 9 };

/* How an input lies in memory, and within its padding: of channel i, the number at place (y, x) of
 * the padded map is at i `channel` + (y `edge` + x) `pixel`. */
typedef struct {
    int inputs, side, stride, outs, last; /* last: channels are innermost */
    int edge, channel, pixel;
} shape_t;
static const shape_t SHAPES[2] = {{81, 7, 2, 16, 0, 9, 81, 1}, {16, 4, 1, 32, 1, 6, 1, 16}};
enum { MOST = 81 * 81 };

static INSIDE void padded(const shape_t *s, const float *x, float *wide) {
    int line = s->last ? s->side * s->inputs : s->side, maps = s->last ? 1 : s->inputs;
    for (int i = 0; i < maps; i++)
        for (int y = 0; y < s->side; y++)
            memcpy(wide + i * s->channel + ((y + 1) * s->edge + 1) * s->pixel,
                   x + (i * s->side + y) * line, line * sizeof(float));
}

static INSIDE int tap_at(const shape_t *s, int tap) {
    return (tap / 3 * s->edge + tap % 3) * s->pixel;
}

static INSIDE int place_at(const shape_t *s, int place) {
    return (place / SIDE * s->edge + place % SIDE) * s->stride * s->pixel;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define LANES 16
#define NAMED(name) name##_16
#define FAST __attribute__((target("avx512f,avx2,fma")))
#define PLUS(a, b, c) ((lanes_16)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define SPREAD(x) ((lanes_16)_mm512_set1_ps(x))
#include "_small_convolutions.c"
#undef LANES
#undef NAMED
#undef FAST
#undef PLUS
#undef SPREAD
#define HAS_WIDER
#define FAST __attribute__((target("avx2,fma")))
#define PLUS(a, b, c) ((lanes_8)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#elif defined(__GNUC__)
int winsor_supported(void) { return 1; }
#define FAST
#define PLUS(a, b, c) ((a) * (b) + (c))
#else
#error "vectors of gcc and clang"
#endif
#define LANES 8
#define NAMED(name) name##_8
#define SPREAD(x) ((lanes_8){(x), (x), (x), (x), (x), (x), (x), (x)})
#include "_small_convolutions.c"

/* What is asked of either length of vectors: `kind` names a shape. */
typedef struct {
    void (*forward)(int, const float *, int64_t, const float *, const float *, float *);
    void (*back)(const float *, int64_t, const float *, float *);
    void (*squares)(const float *, const float *, int64_t, float *);
    void (*sum)(int, const float *, const float *, const float *, int64_t, float *, float *);
} products_t;
static const products_t by_8 = {forward_8, back_8, squares_8, sum_8};
#ifdef HAS_WIDER
static const products_t by_16 = {forward_16, back_16, squares_16, sum_16};
#endif
static const products_t *products = &by_8;

/* Vectors of at most `floats` floats, 8 or 16, are used from now on. What there is: 8 or 16. */
int winsor_use(int floats) {
    products = &by_8;
#ifdef HAS_WIDER
    if (floats == 16 && __builtin_cpu_supports("avx512f")) products = &by_16;
#endif
    return products == &by_8 ? 8 : 16;
}

/* z: (n, places, outs); w: (inputs, taps, outs). */
void winsor_forward(int kind, const float *x, int64_t n, const float *w, const float *bias,
                    float *z) {
    products->forward(kind, x, n, w, bias, z);
}

/* Through the second shape. e: (n, places, 32), w: (taps, 32, 16); dh: (n, places, 16). */
void winsor_back(const float *e, int64_t n, const float *w, float *dh) {
    products->back(e, n, w, dh);
}

/* Of the second shape. out: (n), squared lengths of the gradients of weight and bias, from those at
 * the output. */
void winsor_squares(const float *x, const float *e, int64_t n, float *out) {
    products->squares(x, e, n, out);
}

/* gradient: (inputs, taps, outs) and bias: (outs), both += weighted sums of all rows' own. */
void winsor_sum(int kind, const float *x, const float *e, const float *weights, int64_t n,
                float *gradient, float *bias) {
    products->sum(kind, x, e, weights, n, gradient, bias);
}

#else /* --------------------------------------------------------------- for one length of vectors */

#define lanes NAMED(lanes)
#define anywhere NAMED(anywhere)
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4)));
#define AT(p) (*(anywhere *)(p))
#define SEE(p) (*(const anywhere *)(p))
enum {
    NAMED(TILE) = LANES == 16 ? 8 : 4, /* places side by side: their sums fill the registers */
    NAMED(DEEP) = 32 / LANES,          /* vectors at the most in the products of `sums` */
};

/* sum[p][v] += sum_k spread[at(p) + k along] vectors[k step + v], p < TILE places. */
static FAST INSIDE void NAMED(strip)(const float *spread, const int *at, int along,
                                     const float *vectors, int step, int terms, int deep,
                                     lanes sum[][2]) {
    for (int k = 0; k < terms; k++) {
        lanes first = SEE(vectors + k * step);
        lanes second = deep == 2 ? SEE(vectors + k * step + LANES) : first;
#pragma GCC unroll 8
        for (int p = 0; p < NAMED(TILE); p++) {
            lanes one = SPREAD(spread[at[p] + k * along]);
            sum[p][0] = PLUS(one, first, sum[p][0]);
            if (deep == 2) sum[p][1] = PLUS(one, second, sum[p][1]);
        }
    }
}

/* z of a row; `tile` places side by side. */
static FAST INSIDE void NAMED(one_forward)(const shape_t *s, int tile, const float *wide,
                                           const float *w, const float *bias, float *z) {
    const int deep = s->outs / LANES < 2 ? 1 : 2;
    for (int c = 0; c < s->outs; c += deep * LANES)
        for (int from = 0; from < PLACES; from += tile) {
            lanes sum[PLACES][2];
            for (int p = 0; p < tile; p++)
                for (int v = 0; v < deep; v++) sum[p][v] = SEE(bias + c + v * LANES);
            for (int i = 0; i < s->inputs; i++)
#pragma GCC unroll 9
                for (int tap = 0; tap < TAPS; tap++) {
                    const float *own = w + (i * TAPS + tap) * s->outs + c;
                    const float *map = wide + i * s->channel + tap_at(s, tap);
                    lanes first = SEE(own), second = deep == 2 ? SEE(own + LANES) : first;
#pragma GCC unroll 16
                    for (int p = 0; p < tile; p++) {
                        lanes one = SPREAD(map[place_at(s, from + p)]);
                        sum[p][0] = PLUS(one, first, sum[p][0]);
                        if (deep == 2) sum[p][1] = PLUS(one, second, sum[p][1]);
                    }
                }
            for (int p = 0; p < tile; p++)
                for (int v = 0; v < deep; v++)
                    AT(z + (from + p) * s->outs + c + v * LANES) = sum[p][v];
        }
}

static FAST void NAMED(forward)(int kind, const float *x, int64_t n, const float *w,
                                const float *bias, float *z) {
    float wide[MOST] __attribute__((aligned(64))) = {0};
    for (int64_t row = 0; row < n; row++)
        if (kind == 0) {
            padded(SHAPES, x + row * 81 * 49, wide);
            NAMED(one_forward)(SHAPES, LANES == 16 ? 16 : 4, wide, w, bias, z + row * PLACES * 16);
        } else {
            padded(SHAPES + 1, x + row * 16 * PLACES, wide);
            NAMED(one_forward)(SHAPES + 1, NAMED(TILE), wide, w, bias, z + row * PLACES * 32);
        }
}

static FAST void NAMED(back)(const float *e, int64_t n, const float *w, float *dh) {
    const shape_t *s = SHAPES + 1;
    const int deep = 16 / LANES;
    for (int64_t row = 0; row < n; row++, e += PLACES * 32, dh += PLACES * 16) {
        float wide[36 * 16] __attribute__((aligned(64))) = {0};
        for (int tap = 0; tap < TAPS; tap++)
            for (int from = 0; from < PLACES; from += NAMED(TILE)) {
                lanes sum[NAMED(TILE)][2] = {{{0}}};
                int at[NAMED(TILE)];
                for (int p = 0; p < NAMED(TILE); p++) at[p] = (from + p) * 32;
                NAMED(strip)(e, at, 1, w + tap * 32 * 16, 16, 32, deep, sum);
                for (int p = 0; p < NAMED(TILE); p++)
                    for (int v = 0; v < deep; v++)
                        AT(wide + tap_at(s, tap) + place_at(s, from + p) + v * LANES) += sum[p][v];
            }
        for (int y = 0; y < SIDE; y++)
            memcpy(dh + y * SIDE * 16, wide + ((y + 1) * 6 + 1) * 16, SIDE * 16 * sizeof(float));
    }
}

/* Gradients of the weight for channel i of the input: all taps, `deep` vectors from channel c on. */
static FAST INSIDE void NAMED(taps)(const shape_t *s, const float *map, const float *e, int c,
                                    int deep, lanes sum[][2]) {
#pragma GCC unroll 16
    for (int p = 0; p < PLACES; p++) {
        const float *from = map + place_at(s, p);
        lanes first = SEE(e + p * s->outs + c);
        lanes second = deep == 2 ? SEE(e + p * s->outs + c + LANES) : first;
#pragma GCC unroll 9
        for (int tap = 0; tap < TAPS; tap++) {
            lanes one = SPREAD(from[tap_at(s, tap)]);
            sum[tap][0] = PLUS(one, first, sum[tap][0]);
            if (deep == 2) sum[tap][1] = PLUS(one, second, sum[tap][1]);
        }
    }
}

static FAST INSIDE float NAMED(one_square)(const shape_t *s, const float *wide, const float *e) {
    const int deep = LANES == 16 && s->outs == 32 ? 2 : 1;
    lanes total = {0};
    for (int c = 0; c < s->outs; c += deep * LANES)
        for (int i = 0; i < s->inputs; i++) {
            lanes sum[TAPS][2] = {{{0}}};
            NAMED(taps)(s, wide + i * s->channel, e, c, deep, sum);
            for (int tap = 0; tap < TAPS; tap++)
                for (int v = 0; v < deep; v++) total = PLUS(sum[tap][v], sum[tap][v], total);
        }
    for (int c = 0; c < s->outs; c += LANES) {
        lanes bias = {0};
        for (int p = 0; p < PLACES; p++) bias += SEE(e + p * s->outs + c);
        total = PLUS(bias, bias, total);
    }
    float found = 0;
    for (int j = 0; j < LANES; j++) found += total[j];
    return found;
}

static FAST void NAMED(squares)(const float *x, const float *e, int64_t n, float *out) {
    float wide[MOST] __attribute__((aligned(64))) = {0};
    for (int64_t row = 0; row < n; row++) {
        padded(SHAPES + 1, x + row * 16 * PLACES, wide);
        out[row] = NAMED(one_square)(SHAPES + 1, wide, e + row * PLACES * 32);
    }
}

static FAST INSIDE void NAMED(one_sum)(const shape_t *s, const float *wide, const float *e,
                                       float weight, float *gradient, float *bias) {
    const int deep = LANES == 16 && s->outs == 32 ? 2 : 1;
    float scaled[PLACES * 32] __attribute__((aligned(64)));
    for (int j = 0; j < PLACES * s->outs; j += LANES)
        AT(scaled + j) = SEE(e + j) * SPREAD(weight);
    for (int c = 0; c < s->outs; c += deep * LANES)
        for (int i = 0; i < s->inputs; i++) {
            float *to = gradient + i * TAPS * s->outs + c;
            lanes sum[TAPS][2];
            for (int tap = 0; tap < TAPS; tap++)
                for (int v = 0; v < deep; v++) sum[tap][v] = SEE(to + tap * s->outs + v * LANES);
            NAMED(taps)(s, wide + i * s->channel, scaled, c, deep, sum);
            for (int tap = 0; tap < TAPS; tap++)
                for (int v = 0; v < deep; v++) AT(to + tap * s->outs + v * LANES) = sum[tap][v];
        }
    for (int c = 0; c < s->outs; c += LANES)
        for (int p = 0; p < PLACES; p++) AT(bias + c) += SEE(scaled + p * s->outs + c);
}

static FAST void NAMED(sum)(int kind, const float *x, const float *e, const float *weights,
                            int64_t n, float *gradient, float *bias) {
    float wide[MOST] __attribute__((aligned(64))) = {0};
    for (int64_t row = 0; row < n; row++) {
        if (weights[row] == 0) continue;
        if (kind == 0) {
            padded(SHAPES, x + row * 81 * 49, wide);
            NAMED(one_sum)(SHAPES, wide, e + row * PLACES * 16, weights[row], gradient, bias);
        } else {
            padded(SHAPES + 1, x + row * 16 * PLACES, wide);
            NAMED(one_sum)(SHAPES + 1, wide, e + row * PLACES * 32, weights[row], gradient, bias);
        }
    }
}

#undef lanes
#undef anywhere
#undef AT
#undef SEE
#endif
