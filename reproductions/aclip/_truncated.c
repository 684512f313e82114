/* Sums of smoothed truncated coordinates: out_j = sum_i f(r_i x_ij), f odd.
 *
 * Near zero f(u) is the cubic u - `cube` u^3, and so it is for most coordinates: all of a row are
 * taken for it at once, and those beyond `small` are then corrected one by one. The correction is
 * read off a table that `truncated.py` makes: a polynomial of degree 5 on each piece of [0, split);
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

typedef struct {
    const double *inner, *outer; /* (pieces, 6), highest power first, of the place from the middle */
    int64_t pieces_inner, pieces_outer;
    double split, small, cube;
} table_t;

static inline double on_piece(const double *pieces, int64_t count, double place) {
    int64_t k = (int64_t)place;
    if (k >= count) k = count - 1;
    const double *c = pieces + 6 * k, t = place - (double)k - 0.5, s = t * t;
    return ((c[0] * t + c[1]) * s + (c[2] * t + c[3])) * s + (c[4] * t + c[5]);
}

/* What the cubic lacks below the split, and f itself from there on. */
static inline double correction(double u, const table_t *f) {
    double a = fabs(u);
    if (a < f->split)
        return copysign(on_piece(f->inner, f->pieces_inner, a * (f->pieces_inner / f->split)), u);
    if (a >= f->split)
        return copysign(on_piece(f->outer, f->pieces_outer, f->split / a * f->pieces_outer), u);
    return 0.0; /* not a number */
}

/* x: (n, 4 vectors) with zeros behind the coordinates, r: (n). Returns 1 where it does not fit. */
FAST int64_t winsor_truncated(const double *x, const double *r, int64_t n, int64_t vectors,
                              const table_t *f, double *out) {
    four total[MOST] = {{0}};
    if (vectors > MOST) return 1;
    const four cube = SPREAD(-f->cube), one = SPREAD(1.0), small = SPREAD(f->small * f->small),
               split = SPREAD(f->split * f->split);
    for (int64_t i = 0; i < n; i++) {
        four pull = SPREAD(r[i]);
        for (int64_t v = 0; v < vectors; v++, x += 4) {
            four u = pull * (four){x[0], x[1], x[2], x[3]}, square = u * u;
            whole below = square < split, beyond = ~(square < small);
            four near = (four)(below & (whole)u), bend = (four)(below & (whole)square);
            total[v] += near * (one + cube * bend);
            for (int left = SIGNS(beyond); left; left &= left - 1) {
                int k = __builtin_ctz(left);
                total[v][k] += correction(u[k], f);
            }
        }
    }
    for (int64_t v = 0; v < vectors; v++)
        for (int k = 0; k < 4; k++) out[4 * v + k] = total[v][k];
    return 0;
}
