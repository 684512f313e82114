/* Sums of smoothed truncated coordinates: out_j = sum_i f(r_i x_ij), f odd and read off a table.
 *
 * `truncated.py` makes the table: f is a polynomial of degree 5 on each piece of [0, `split`), and
 * as a function of 1/u on each piece of (0, 1/split]. Near zero f(u) = u - `cube` u^3, so that a row
 * whose largest product is below `small` needs no table. */

#include <math.h>
#include <stdint.h>

#define MOST 256 /* coordinates */

typedef struct {
    const double *inner, *outer; /* (pieces, 6), highest power first, of the place from the middle */
    int64_t pieces_inner, pieces_outer;
    double split, small, cube;
} table_t;

int winsor_supported(void) { return 1; }

static inline double on_piece(const double *pieces, int64_t count, double place) {
    int64_t k = (int64_t)place;
    if (k >= count) k = count - 1;
    const double *c = pieces + 6 * k, t = place - (double)k - 0.5, s = t * t;
    return ((c[0] * t + c[1]) * s + (c[2] * t + c[3])) * s + (c[4] * t + c[5]);
}

static inline double truncated(double u, const table_t *f) {
    double a = fabs(u), value;
    if (a < f->split)
        value = on_piece(f->inner, f->pieces_inner, a * (f->pieces_inner / f->split));
    else if (a >= f->split)
        value = on_piece(f->outer, f->pieces_outer, f->split / a * f->pieces_outer);
    else
        value = 0.0; /* not a number */
    return copysign(value, u);
}

/* x: (n, d), r: (n), reach: (n) the largest |x_ij| of a row. Returns 1 where it does not fit. */
int64_t winsor_truncated(const double *x, const double *r, const double *reach, int64_t n, int64_t d,
                         const table_t *f, double *out) {
    double total[MOST] = {0};
    if (d > MOST) return 1;
    for (int64_t i = 0; i < n; i++, x += d) {
        if (fabs(r[i]) * reach[i] < f->small) {
            double pull = r[i], bend = f->cube * r[i] * r[i];
            for (int64_t j = 0; j < d; j++)
                total[j] += pull * x[j] * (1.0 - bend * (x[j] * x[j]));
        } else {
            for (int64_t j = 0; j < d; j++) total[j] += truncated(r[i] * x[j], f);
        }
    }
    for (int64_t j = 0; j < d; j++) out[j] = total[j];
    return 0;
}
