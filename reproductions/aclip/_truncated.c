/* Sums of smoothed truncated coordinates: out_j = sum_i f(r_i x_ij), f odd.
 *
 * Near zero f(u) is the cubic u - `cube` u^3, and so it is for most coordinates: all of a row are
 * taken for it at once, and where one lies beyond `small` it and its neighbours are corrected. The
 * correction is read off a table that `truncated.py` makes: a cubic on each piece of [0, split);
 * beyond, where a cubic would drown everything, f itself as a function of 1/u. */

#include <math.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define FAST __attribute__((target("avx2")))
#define SIGNS(v) _mm256_movemask_pd((__m256d)(v))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
#elif defined(__GNUC__)
#define FAST
#define SIGNS(v) (int)(((v)[0] & 1) | ((v)[1] & 2) | ((v)[2] & 4) | ((v)[3] & 8))
int winsor_supported(void) { return 1; }
#else
#error "vectors of gcc and clang"
#endif

typedef double four __attribute__((vector_size(32)));
typedef int64_t whole __attribute__((vector_size(32)));

#define MOST 64 /* vectors of a row */
#define SPREAD(x) ((four){(x), (x), (x), (x)})
#define SIGN ((whole){INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN})

typedef struct {
    const double *inner, *outer; /* (pieces, 4), lowest power first, of the place from the middle */
    int64_t pieces_inner, pieces_outer;
    double split, small, cube;
} table_t;

static inline double on_piece(const double *pieces, int64_t count, double place) {
    int64_t k = (int64_t)place;
    if (k >= count) k = count - 1;
    const double *c = pieces + 4 * k, t = place - (double)k - 0.5;
    return ((c[3] * t + c[2]) * t + c[1]) * t + c[0];
}

/* What the cubic lacks at four numbers below the split; `a` are their absolute values. */
static FAST inline four corrections(four u, four a, const table_t *f) {
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

/* x: (n, 4 vectors) with zeros behind the coordinates, r: (n). Returns 1 where it does not fit. */
FAST int64_t winsor_truncated(const double *x, const double *r, int64_t n, int64_t vectors,
                              const table_t *f, double *out) {
    four total[MOST] = {{0}};
    if (vectors > MOST) return 1;
    const four cube = SPREAD(-f->cube), one = SPREAD(1.0), small = SPREAD(f->small),
               split = SPREAD(f->split * (1 - 1e-15));
    for (int64_t i = 0; i < n; i++) {
        four pull = SPREAD(r[i]);
        for (int64_t v = 0; v < vectors; v++, x += 4) {
            four u = pull * (four){x[0], x[1], x[2], x[3]}, a = (four)((whole)u & ~SIGN);
            if (!SIGNS(~(a < small))) {
                total[v] += u * (one + cube * (u * u));
                continue;
            }
            whole below = a < split;
            four near = (four)(below & (whole)u);
            a = (four)(below & (whole)a);
            total[v] += near * (one + cube * (near * near)) + corrections(near, a, f);
            for (int left = SIGNS(~below); left; left &= left - 1) {
                double far = u[__builtin_ctz(left)];
                if (far == far) /* a number */
                    total[v][__builtin_ctz(left)] += copysign(
                        on_piece(f->outer, f->pieces_outer, f->split / fabs(far) * f->pieces_outer),
                        far);
            }
        }
    }
    for (int64_t v = 0; v < vectors; v++)
        for (int k = 0; k < 4; k++) out[4 * v + k] = total[v][k];
    return 0;
}
