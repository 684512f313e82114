/* The inner loops of `lockstep.py` and `truncated.py`: every run of a lockstep, row after row.
 *
 * The runs lie side by side, four to a vector, so that a row is read once for all of them. The
 * sums over a batch are rounded in other places than numpy's: the same numbers but for that. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2,fma")))
#define PLUS(a, b, c) ((four)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define ANY(v) _mm256_movemask_pd((__m256d)(v))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#elif defined(__GNUC__)
#define FAST
#define PLUS(a, b, c) ((a) * (b) + (c))
#define ANY(v) ((v)[0] | (v)[1] | (v)[2] | (v)[3])
int winsor_supported(void) { return 1; }
#else
#error "vectors of gcc and clang"
#endif

typedef double four __attribute__((vector_size(32)));
typedef int64_t whole __attribute__((vector_size(32)));

#define MOST 32 /* vectors, and coordinates, of a lockstep */
#define ROWS 4  /* that are read together */
#define AHEAD 16 /* rows, to be fetched while these are worked on */
#define INSIDE inline __attribute__((always_inline))

#define SPREAD(x) ((four){(x), (x), (x), (x)})
#define SIGN ((whole){INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN})

static FAST INSIDE four smaller(four a, four b) {
    whole first = a < b;
    return (four)((first & (whole)a) | (~first & (whole)b));
}

static FAST INSIDE four larger(four a, four b) {
    whole first = a > b;
    return (four)((first & (whole)a) | (~first & (whole)b));
}

/* 1 / (1 + e^-s) of four rows at once, so that no sum waits for the one before it: e^a = 2^k e^r
 * with |r| <= ln(2)/2, where Taylor's 12 terms are exact to 1e-14. */
static FAST INSIDE void sigmoids(four *s) {
    static const double over[] = {
        1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
        1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0,        1.0};
    const four nearest = SPREAD(0x1.8p52), one = SPREAD(1.0);
    four shifted[ROWS], r[ROWS], p[ROWS];
    for (int q = 0; q < ROWS; q++) {
        four a = smaller(larger(-s[q], SPREAD(-700.0)), SPREAD(700.0));
        shifted[q] = PLUS(a, SPREAD(0x1.71547652b82fep+0), nearest);
        four k = shifted[q] - nearest;
        r[q] = PLUS(k, SPREAD(-0x1.62e42fee00000p-1), a);
        r[q] = PLUS(k, SPREAD(-0x1.a39ef35793c76p-33), r[q]);
        p[q] = SPREAD(over[0]);
    }
    for (int i = 1; i < 12; i++)
        for (int q = 0; q < ROWS; q++) p[q] = PLUS(p[q], r[q], SPREAD(over[i]));
    for (int q = 0; q < ROWS; q++) {
        p[q] = (four)((whole)p[q] + ((whole)shifted[q] << 52)); /* its low bits are k */
        s[q] = one / (one + p[q]);
    }
}

/* Rows of `points` (d, runs) longer than their radius, scaled to it. */
static FAST INSIDE void into_balls(four *points, int64_t d, int64_t vectors, const four *radii) {
    for (int64_t v = 0; v < vectors; v++) {
        four square = {0};
        for (int64_t j = 0; j < d; j++) square += points[j * vectors + v] * points[j * vectors + v];
        four length = {sqrt(square[0]), sqrt(square[1]), sqrt(square[2]), sqrt(square[3])};
        four factor = smaller(SPREAD(1.0), radii[v] / length);
        for (int64_t j = 0; j < d; j++) points[j * vectors + v] *= factor;
    }
}

/* A lockstep and some of its steps. table: (n, d + 2) features, target, limit of a residual for
 * C = 1; the batch of step t is picked[cuts[t]] .. picked[cuts[t + 1] - 1]; noise: (steps, runs,
 * d). A run that does not clip rows has an infinite bound, one that does not clip its average an
 * infinite lambda, one that is not projected an infinite radius. w and total: (d, 4 vectors). */
typedef struct {
    int64_t steps, d, runs, logistic;
    double batch_size;
    const int64_t *cuts, *picked;
    const double *table, *noise;
    const double *bounds, *lambdas, *radii, *rates;
    double *w, *total;
} lockstep_t;

/* Residuals of ROWS rows under `width` vectors of runs. */
static FAST INSIDE void residuals(const double *const *row, const four *w, const four *bound,
                                  int64_t d, int64_t vectors, int width, int64_t logistic,
                                  four *residual) {
    four s[2][ROWS] = {{{0}}};
    for (int64_t j = 0; j < d; j++)
        for (int q = 0; q < ROWS; q++) {
            four x = SPREAD(row[q][j]);
            for (int v = 0; v < width; v++) s[v][q] = PLUS(x, w[j * vectors + v], s[v][q]);
        }
    for (int v = 0; v < width; v++) {
        if (logistic) sigmoids(s[v]);
        for (int q = 0; q < ROWS; q++) {
            four most = bound[v] * row[q][d + 1];
            residual[q * MOST + v] = larger(smaller(s[v][q] - row[q][d], most), -most);
        }
    }
}

/* The steps; where `d` and `vectors` are constants the compiler unrolls what depends on them. */
static FAST INSIDE void take(const lockstep_t *given, int64_t d, int64_t vectors) {
    const int64_t *cuts = given->cuts, *picked = given->picked, numbers = d * vectors;
    double nothing[MOST + 2] = {0};
    nothing[d + 1] = 1.0; /* an infinite bound times a limit of zero would be no number */
    four w[MOST * MOST], total[MOST * MOST], slope[MOST * MOST], residual[ROWS * MOST], bound[MOST],
        lambda[MOST], radius[MOST], rate[MOST];
    memcpy(w, given->w, numbers * sizeof(four));
    memcpy(total, given->total, numbers * sizeof(four));
    memcpy(bound, given->bounds, vectors * sizeof(four));
    memcpy(lambda, given->lambdas, vectors * sizeof(four));
    memcpy(radius, given->radii, vectors * sizeof(four));
    memcpy(rate, given->rates, vectors * sizeof(four));
    int64_t last = cuts[given->steps];
    for (int64_t t = 0; t < given->steps; t++) {
        memset(slope, 0, numbers * sizeof(four));
        for (int64_t i = cuts[t]; i < cuts[t + 1]; i += ROWS) {
            const double *row[ROWS]; /* beyond the batch: a row of zeros, which pulls nowhere */
            for (int q = 0; q < ROWS; q++) {
                row[q] = i + q < cuts[t + 1] ? given->table + picked[i + q] * (d + 2) : nothing;
                if (i + q + AHEAD < last) {
                    const double *soon = given->table + picked[i + q + AHEAD] * (d + 2);
                    __builtin_prefetch(soon);
                    __builtin_prefetch(soon + d + 1);
                }
            }
            int64_t v = 0;
            for (; v + 1 < vectors; v += 2)
                residuals(row, w + v, bound + v, d, vectors, 2, given->logistic, residual + v);
            if (v < vectors)
                residuals(row, w + v, bound + v, d, vectors, 1, given->logistic, residual + v);
            for (int64_t j = 0; j < d; j++) {
                four x[ROWS];
                for (int q = 0; q < ROWS; q++) x[q] = SPREAD(row[q][j]);
                for (int64_t v = 0; v < vectors; v++) {
                    four sum = slope[j * vectors + v];
                    for (int q = 0; q < ROWS; q++) sum = PLUS(x[q], residual[q * MOST + v], sum);
                    slope[j * vectors + v] = sum;
                }
            }
        }
        for (int64_t k = 0; k < numbers; k++) slope[k] /= given->batch_size;
        into_balls(slope, d, vectors, lambda);
        const double *z = given->noise + t * given->runs * d;
        for (int64_t k = 0; k < given->runs; k++)
            for (int64_t j = 0; j < d; j++) slope[j * vectors + k / 4][k % 4] += z[k * d + j];
        for (int64_t j = 0; j < d; j++)
            for (int64_t v = 0; v < vectors; v++)
                w[j * vectors + v] -= rate[v] * slope[j * vectors + v];
        into_balls(w, d, vectors, radius);
        for (int64_t k = 0; k < numbers; k++) total[k] += w[k];
    }
    memcpy(given->w, w, numbers * sizeof(four));
    memcpy(given->total, total, numbers * sizeof(four));
}

/* Returns 1 where a lockstep is too large. */
FAST int64_t winsor_lockstep(const lockstep_t *given) {
    int64_t vectors = (given->runs + 3) / 4;
    if (vectors > MOST || given->d > MOST) return 1;
    if (given->d == 10 && vectors == 7)
        take(given, 10, 7); /* the paper's own size */
    else
        take(given, given->d, vectors);
    return 0;
}

/* Smoothed truncation, f, is odd. Near zero f(u) = u - cube u^3; up to `split` it is that and what
 * the table `inner` adds; beyond, where a cubic would drown everything, `outer` is f itself as a
 * function of 1/u. A table is a cubic on each of its pieces. */

typedef struct {
    const double *inner, *outer; /* (pieces, 4), lowest power first, of the place from the middle */
    int64_t pieces_inner, pieces_outer;
    double split, small, cube;
} table_t;

static FAST INSIDE double on_piece(const double *pieces, int64_t count, double place) {
    int64_t k = (int64_t)place;
    if (k >= count) k = count - 1;
    const double *c = pieces + 4 * k, t = place - (double)k - 0.5;
    return ((c[3] * t + c[2]) * t + c[1]) * t + c[0];
}

/* What the cubic lacks at four numbers below the split; `a` are their absolute values. */
static FAST INSIDE four corrections(four u, four a, const table_t *f) {
    four place = a * (f->pieces_inner / f->split), c[4], t;
#if defined(__x86_64__)
    __m128i k = _mm256_cvttpd_epi32((__m256d)place);
    t = place - (four)_mm256_cvtepi32_pd(k) - 0.5;
    int32_t at[4];
    _mm_storeu_si128((__m128i *)at, k);
    __m256d row[4], low, high;
    for (int i = 0; i < 4; i++) row[i] = _mm256_loadu_pd(f->inner + 4 * (int64_t)at[i]);
    low = _mm256_unpacklo_pd(row[0], row[1]), high = _mm256_unpacklo_pd(row[2], row[3]);
    c[0] = (four)_mm256_permute2f128_pd(low, high, 0x20);
    c[2] = (four)_mm256_permute2f128_pd(low, high, 0x31);
    low = _mm256_unpackhi_pd(row[0], row[1]), high = _mm256_unpackhi_pd(row[2], row[3]);
    c[1] = (four)_mm256_permute2f128_pd(low, high, 0x20);
    c[3] = (four)_mm256_permute2f128_pd(low, high, 0x31);
#else
    for (int i = 0; i < 4; i++) {
        int64_t k = (int64_t)place[i];
        t[i] = place[i] - (double)k - 0.5;
        for (int power = 0; power < 4; power++) c[power][i] = f->inner[4 * k + power];
    }
#endif
    four value = ((c[3] * t + c[2]) * t + c[1]) * t + c[0];
    return (four)((whole)value ^ ((whole)u & SIGN)); /* f is odd */
}

/* f of four numbers of which one is not near zero. */
static FAST __attribute__((noinline)) four far_truncated(four u, const table_t *f) {
    whole below = (four)((whole)u & ~SIGN) < f->split * (1 - 1e-15);
    four near = (four)(below & (whole)u);
    four value = PLUS(near * SPREAD(-f->cube), near * near, near);
    value += corrections(near, (four)((whole)near & ~SIGN), f);
    for (int k = 0; k < 4; k++)
        if (!below[k])
            value[k] = u[k] == u[k] ? copysign(on_piece(f->outer, f->pieces_outer,
                                                        f->split / fabs(u[k]) * f->pieces_outer),
                                               u[k])
                                    : 0.0; /* not a number */
    return value;
}

/* out_jk = sum_i f(r_ik x_ij / scale), r_ik the residual of row i (x: (n, d), y: (n)) under run k.
 * w, out: (d, 4 vectors). Returns 1 where it does not fit. */
FAST int64_t winsor_truncated(const double *x, const double *y, int64_t n, int64_t d,
                              int64_t vectors, int64_t logistic, double scale, const double *w_in,
                              const table_t *table, double *out) {
    if (vectors > MOST || d > MOST) return 1;
    const table_t f = *table;
    const four small = SPREAD(f.small), cube = SPREAD(-f.cube);
    double nothing[MOST] = {0};
    four w[MOST * MOST], total[MOST * MOST];
    memcpy(w, w_in, d * vectors * sizeof(four));
    memset(total, 0, d * vectors * sizeof(four));
    for (int64_t i = 0; i < n; i += ROWS) {
        const double *row[ROWS];
        for (int q = 0; q < ROWS; q++) row[q] = i + q < n ? x + (i + q) * d : nothing;
        for (int64_t v = 0; v < vectors; v++) {
            four s[ROWS] = {{0}};
            for (int64_t j = 0; j < d; j++)
                for (int q = 0; q < ROWS; q++)
                    s[q] = PLUS(SPREAD(row[q][j]), w[j * vectors + v], s[q]);
            if (logistic) sigmoids(s);
            for (int q = 0; q < ROWS; q++) s[q] = (s[q] - (i + q < n ? y[i + q] : 0.0)) / scale;
            for (int64_t j = 0; j < d; j++)
                for (int q = 0; q < ROWS; q++) {
                    four u = s[q] * row[q][j], a = (four)((whole)u & ~SIGN), value;
                    if (ANY(~(a < small)))
                        value = far_truncated(u, &f);
                    else
                        value = PLUS(u * cube, u * u, u);
                    total[j * vectors + v] += value;
                }
        }
    }
    memcpy(out, total, d * vectors * sizeof(four));
    return 0;
}
