/* Norms and weighted output-gradients of linear maps that were applied once per row.
 *
 * G_i = e_i x_i^T (and e_i for a bias): |G_i|^2 = |e_i|^2 (|x_i|^2 + 1). One call for all layers of a
 * small model, where a call of torch per operation costs more than the operation. Every floating-
 * point operation is a single IEEE operation in the order in which `small.py` does it in numpy.
 * Compile with -ffp-contract=off and without -ffast-math. Squares of float32 are exact in float64. */

#include <float.h>
#include <math.h>
#include <stdint.h>

#define LANES 16

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2")))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
#elif defined(__GNUC__)
#define FAST
int winsor_supported(void) { return 1; }
#else
#error "vectors of gcc and clang"
#endif

typedef double four __attribute__((vector_size(32)));
typedef float narrow __attribute__((vector_size(16)));

typedef struct {
    const float *e, *x; /* (n, outputs), (n, inputs) */
    int64_t outputs, inputs, has_bias;
    float *scaled, *bias; /* (outputs, n), (outputs) or null: for the sum */
} map_t;

static FAST inline four wide(const float *x) {
#if defined(__x86_64__)
    return (four)_mm256_cvtps_pd(_mm_loadu_ps(x));
#else
    narrow v;
    __builtin_memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, four);
#endif
}

/* Lane j adds up the squares of x[j], x[j + 16], ...; then the lanes in pairs. */
static FAST inline double square(const float *x, int64_t size) {
    four a = {0}, b = {0}, c = {0}, d = {0}, v;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        v = wide(x + i);
        a += v * v;
        v = wide(x + i + 4);
        b += v * v;
        v = wide(x + i + 8);
        c += v * v;
        v = wide(x + i + 12);
        d += v * v;
    }
    if (i < size) {
        float rest[LANES] = {0};
        for (int64_t j = 0; i + j < size; j++) rest[j] = x[i + j];
        v = wide(rest);
        a += v * v;
        v = wide(rest + 4);
        b += v * v;
        v = wide(rest + 8);
        c += v * v;
        v = wide(rest + 12);
        d += v * v;
    }
    four sum = (a + b) + (c + d);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Norms over all maps; returns whether every loss is finite and every norm a float. */
FAST int winsor_norms(const map_t *maps, int64_t count, int64_t n, const float *losses,
                      float *norms) {
    int fine = 1;
    for (int64_t i = 0; i < n; i++) {
        double total = 0.0;
        for (int64_t k = 0; k < count; k++) {
            const map_t *m = maps + k;
            double e = square(m->e + i * m->outputs, m->outputs);
            double x = m->x ? square(m->x + i * m->inputs, m->inputs) : 0.0;
            total = total + e * (x + (double)m->has_bias);
        }
        double norm = sqrt(total);
        fine &= norm <= FLT_MAX && fabsf(losses[i]) <= FLT_MAX;
        norms[i] = (float)norm;
    }
    return fine;
}

/* clip / max(least, norm) for each row, as torch does it: reciprocal first. A weight below the normal
 * range has lost digits: none. */
FAST void winsor_clip(const float *norms, int64_t n, float least, float clip, float *weights) {
    for (int64_t i = 0; i < n; i++) {
        float norm = norms[i] < least ? least : norms[i];
        float weight = 1.0f / norm * clip;
        weights[i] = weight <= FLT_MIN ? 0.0f : weight;
    }
}

/* Column i of scaled = w_i e_i, the side on which matrix products are quickest; and bias = the sum of
 * its columns, in float64, one after the other. */
FAST void winsor_scale(const map_t *maps, int64_t count, int64_t n, const float *weights) {
    for (int64_t k = 0; k < count; k++) {
        const map_t *m = maps + k;
        for (int64_t first = 0; first < m->outputs; first += LANES) {
            int64_t width = m->outputs - first < LANES ? m->outputs - first : LANES;
            double sum[LANES] = {0};
            for (int64_t i = 0; i < n; i++) {
                const float *e = m->e + i * m->outputs + first;
                for (int64_t j = 0; j < width; j++) {
                    float product = e[j] * weights[i];
                    m->scaled[(first + j) * n + i] = product;
                    sum[j] = sum[j] + (double)product;
                }
            }
            if (m->bias)
                for (int64_t j = 0; j < width; j++) m->bias[first + j] = (float)sum[j];
        }
    }
}
