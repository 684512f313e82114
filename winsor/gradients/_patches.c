/* Ghost norms of convolutions from the Gram matrices of their pixels and of their output-gradients.
 *
 * square_i = sum_pq e_i[p, q] patches_i[p, q], where patches is the Gram matrix of pixels, shifted along
 * both of its sides and added up offset by offset of the kernel, first down the image, then across.
 * One matrix at a time, so that all of it stays in the cache; the operations and their order are those
 * of `layers/patch_squares.py`. Compile with -ffp-contract=off and without -ffast-math. */

#include <stdint.h>
#include <string.h>

#define LANES 16

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2")))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define FAST
int winsor_supported(void) { return 1; }
#endif

typedef struct {
    int64_t side, kernel, stride, padding, dilation, places;
} axis_t;

typedef struct {
    int64_t shift, first, last; /* places `first` to `last` see a pixel at place * stride + shift */
} reach_t;

static int64_t down(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

static reach_t reach(const axis_t *axis, int64_t k) {
    reach_t found = {k * axis->dilation - axis->padding, 0, 0};
    int64_t least = -down(found.shift, axis->stride);
    int64_t most = down(axis->side - 1 - found.shift, axis->stride);
    found.first = least > 0 ? least : 0;
    found.last = most < axis->places - 1 ? most : axis->places - 1;
    return found;
}

static FAST inline void add(float *restrict to, const float *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = to[i] + from[i];
}

/* (H, W, H, W) -> (h, W, h, W) */
static FAST void downwards(const float *gram, const axis_t *y, int64_t width, float *out) {
    const int64_t from = y->side * width, to = y->places * width;
    memset(out, 0, sizeof(float) * (size_t)(to * to));
    for (int64_t k = 0; k < y->kernel; k++) {
        const reach_t r = reach(y, k);
        for (int64_t a = r.first; a <= r.last; a++)
            for (int64_t x = 0; x < width; x++) {
                const float *source = gram + ((a * y->stride + r.shift) * width + x) * from;
                float *target = out + (a * width + x) * to;
                if (y->stride == 1)
                    add(target + r.first * width, source + (r.first + r.shift) * width,
                        (r.last - r.first + 1) * width);
                else
                    for (int64_t b = r.first; b <= r.last; b++)
                        add(target + b * width, source + (b * y->stride + r.shift) * width, width);
            }
    }
}

/* (h, W, h, W) -> (h, w, h, w) */
static FAST void across(const float *gram, const axis_t *x, int64_t height, float *out) {
    const int64_t width = x->side, places = x->places;
    const int64_t from = height * width, to = height * places;
    memset(out, 0, sizeof(float) * (size_t)(to * to));
    for (int64_t k = 0; k < x->kernel; k++) {
        const reach_t r = reach(x, k);
        for (int64_t y = 0; y < height; y++)
            for (int64_t a = r.first; a <= r.last; a++) {
                const float *source = gram + (y * width + a * x->stride + r.shift) * from;
                float *target = out + (y * places + a) * to;
                for (int64_t b = 0; b < height; b++, source += width, target += places) {
                    if (x->stride == 1)
                        add(target + r.first, source + r.first + r.shift, r.last - r.first + 1);
                    else
                        for (int64_t c = r.first; c <= r.last; c++)
                            target[c] = target[c] + source[c * x->stride + r.shift];
                }
            }
    }
}

#if defined(__x86_64__)
#define MOST 64 /* places along an axis, and 16 offsets of a kernel, that the tables below hold */

/* The same two for steps of one, which most kernels take: a number is read once for each offset and
 * written once. What is written beyond a run of eight is overwritten by the next run, or never read. */
static int in_eights(const axis_t *axis) {
    return axis->stride == 1 && axis->kernel <= 16 && axis->places <= MOST && axis->side <= MOST;
}

static FAST inline __m256 masked(const float *from, const int32_t *mask) {
    return _mm256_maskload_ps(from, _mm256_loadu_si256((const __m256i *)mask));
}

static FAST void downwards_in_eights(const float *gram, const axis_t *y, int64_t width, float *out) {
    const int64_t from = y->side * width, places = y->places;
    int32_t inside[MOST + 8];
    for (int64_t c = 0; c < MOST + 8; c++) inside[c] = c < width ? -1 : 0;
    for (int64_t a = 0; a < places; a++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t b = 0; b < places; b++, out += width) {
                const float *rows[16];
                int64_t count = 0;
                for (int64_t k = 0; k < y->kernel; k++) {
                    const int64_t shift = k * y->dilation - y->padding, i = a + shift, j = b + shift;
                    if (i >= 0 && i < y->side && j >= 0 && j < y->side)
                        rows[count++] = gram + (i * width + x) * from + j * width;
                }
                for (int64_t c = 0; c < width; c += 8) {
                    __m256 sum = _mm256_setzero_ps();
                    for (int64_t k = 0; k < count; k++)
                        sum = _mm256_add_ps(sum, masked(rows[k] + c, inside + c));
                    _mm256_storeu_ps(out + c, sum);
                }
            }
}

static FAST void across_in_eights(const float *gram, const axis_t *x, int64_t height, float *out) {
    const int64_t width = x->side, places = x->places, from = height * width;
    int32_t inside[16][MOST + 8];
    for (int64_t k = 0; k < x->kernel; k++) {
        const reach_t r = reach(x, k);
        for (int64_t c = 0; c < MOST + 8; c++) inside[k][c] = c >= r.first && c <= r.last ? -1 : 0;
    }
    for (int64_t y = 0; y < height; y++)
        for (int64_t a = 0; a < places; a++) {
            int64_t rows[16], count = 0; /* as numbers: a masked read may begin before the array */
            const int32_t *masks[16];
            for (int64_t k = 0; k < x->kernel; k++) {
                const int64_t shift = k * x->dilation - x->padding;
                if (!inside[k][a]) continue;
                rows[count] = (y * width + a + shift) * from + shift;
                masks[count++] = inside[k];
            }
            for (int64_t b = 0; b < height; b++, out += places)
                for (int64_t c = 0; c < places; c += 8) {
                    __m256 sum = _mm256_setzero_ps();
                    for (int64_t k = 0; k < count; k++)
                        sum = _mm256_add_ps(sum, masked(gram + (rows[k] + b * width + c), masks[k] + c));
                    _mm256_storeu_ps(out + c, sum);
                }
        }
}
#else
static int in_eights(const axis_t *axis) { return 0; }
#define MOST 0
#define downwards_in_eights downwards
#define across_in_eights across
#endif

typedef double four_t __attribute__((vector_size(32)));
typedef float narrow_t __attribute__((vector_size(16)));

static FAST inline four_t wide(const float *a, const float *b) {
    narrow_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    x = x * y;
#if defined(__x86_64__)
    return (four_t)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, four_t);
#endif
}

/* Lane j adds up the products of entries j, j + 16, ..., each rounded to float32; then in pairs. */
static FAST double product(const float *a, const float *b, int64_t count) {
    four_t lanes[4] = {{0}};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < 4; j++) lanes[j] += wide(a + i + 4 * j, b + i + 4 * j);
    if (i < count) {
        float left[LANES] = {0}, right[LANES] = {0};
        memcpy(left, a + i, sizeof(float) * (size_t)(count - i));
        memcpy(right, b + i, sizeof(float) * (size_t)(count - i));
        for (int j = 0; j < 4; j++) lanes[j] += wide(left + 4 * j, right + 4 * j);
    }
    const four_t sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* gram is (n, H W, H W), e (n, h w, h w); work holds (h W)^2 + (h w)^2 + 8 numbers. */
FAST void winsor_patches(const float *gram, const float *e, int64_t n, const axis_t *axes,
                         float *work, double *square, double *diagonal) {
    const axis_t *y = axes, *x = axes + 1;
    const int64_t pixels = y->side * x->side, places = y->places * x->places;
    const int64_t half = y->places * x->side;
    float *patches = work + half * half;
    for (int64_t i = 0; i < n; i++, gram += pixels * pixels, e += places * places) {
        (in_eights(y) && x->side <= MOST ? downwards_in_eights : downwards)(gram, y, x->side, work);
        (in_eights(x) ? across_in_eights : across)(work, x, y->places, patches);
        square[i] = product(patches, e, places * places);
        double own = 0.0;
        for (int64_t p = 0; p < places; p++) {
            float value = patches[p * places + p] * e[p * places + p];
            own = own + (double)value;
        }
        diagonal[i] = own;
    }
}
