/* Norms and sums of recorded rows in float64 (see `arithmetic.py`).
 *
 * Numbers are float32, widened as they are read, or float64 ("wide"), held between public limits.
 * Products are made tile by tile: operands are widened, and weighted, while they are packed into
 * panels that stay in the cache. An element of a product is a chain of fused multiply-adds over at
 * most BLOCK places; such chains are added up in their order, 256 to a series, and then the series:
 * the same digits whatever the size of the product, the place of the element and the length of
 * vectors. Inner products have 32 lanes, added up in pairs. The file includes itself, for vectors of
 * 8 doubles and for vectors of 4. Compile with -ffp-contract=off and without -ffast-math. */

#ifndef LANES

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INSIDE inline __attribute__((always_inline))
#define EACH(i, n) for (int64_t i = 0; i < (n); i++)

enum { BLOCK = 128, SERIES = 256 * BLOCK, TILE = 192, BREADTH = 408, VECTORS = 3 };
/* TILE and BREADTH are multiples of the width of panels, 24 or 12. */

/* One side of a product. */
typedef struct {
    const char *from;
    int64_t along, down, wide;
} side_t;

/* A linear map that was applied once per row: (n, outputs), (n, inputs) or null, and for sums
 * (outputs, inputs) or null, (outputs) or null. */
typedef struct {
    const char *e, *x;
    int64_t outputs, inputs, has_bias;
    double *weight, *bias;
} map_t;

/* Output-gradients (n, places, size) of a map, for norms. */
typedef struct {
    const char *from;
    int64_t size;
} left_t;

#define ALIGNED static _Thread_local __attribute__((aligned(64))) double
ALIGNED packed_left[TILE * BLOCK];
ALIGNED packed_right[BREADTH * BLOCK];
ALIGNED tile_of_right[TILE * TILE];
ALIGNED tile_of_left[TILE * TILE];
ALIGNED tile_of_series[TILE * TILE];

static INSIDE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static INSIDE int64_t bytes(int kind) { return kind ? sizeof(double) : sizeof(float); }

/* float32; float64, of factors: held from 2^-250 to 2^250; of rows: from 2^-500 to 2^250, so that the
 * products of two factors are read as they are; numbers of our own, all of them. */
enum { NARROW, WIDE, ROWS, MADE };

static INSIDE double one(const char *x, int kind) {
    if (kind == NARROW) return (double)*(const float *)x;
    double v = *(const double *)x, size = fabs(v);
    return size < (kind == WIDE ? 0x1p-250 : 0x1p-500) ? 0.0 : size > 0x1p250 ? v * INFINITY : v;
}

static void moved(int64_t m, int64_t n, const double *from, int64_t step, double *to, int64_t apart,
                  int add) {
    EACH(i, m)
        EACH(j, n) to[i * apart + j] = from[i * step + j] + (add ? to[i * apart + j] : -0.0);
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
/* Doubles in the longest vectors that there are. */
int winsor_lanes(void) { return __builtin_cpu_supports("avx512f") ? 8 : 4; }
#define LANES 8
#define HIGH 8
#define NAMED(name) name##_8
#define FAST __attribute__((target("avx512f,avx2,fma")))
#define PLUS(a, b, c) ((vector_8)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define SPREAD(x) ((vector_8)_mm512_set1_pd(x))
#define WIDEN(x) ((vector_8)_mm512_cvtps_pd(_mm256_loadu_ps(x)))
#include "_arithmetic.c"
#undef LANES
#undef HIGH
#undef NAMED
#undef FAST
#undef PLUS
#undef SPREAD
#undef WIDEN
#define FAST __attribute__((target("avx2,fma")))
#define PLUS(a, b, c) ((vector_4)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define WIDEN(x) ((vector_4)_mm256_cvtps_pd(_mm_loadu_ps(x)))
#elif defined(__GNUC__)
int winsor_supported(void) { return 1; }
int winsor_lanes(void) { return 4; }
#define FAST
#define PLUS(a, b, c) NAMED(plus)(a, b, c)
#define FUSED(i) __builtin_fma(a[i], b[i], c[i])
#define WIDEN(x) ((vector_4){(x)[0], (x)[1], (x)[2], (x)[3]})
#else
#error "vectors of gcc and clang"
#endif
#define LANES 4
#define HIGH 4
#define NAMED(name) name##_4
#define SPREAD(x) ((vector_4){(x), (x), (x), (x)})
#include "_arithmetic.c"

#else /* -------------------------------------------------------- for one length of vectors */

#define vec NAMED(vector)
#define loose NAMED(loose)
#define bits NAMED(bits)
#define WIDTH (VECTORS * LANES)
typedef double vec __attribute__((vector_size(8 * LANES)));
typedef double loose __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef int64_t bits __attribute__((vector_size(8 * LANES)));

#ifdef FUSED
static INSIDE vec NAMED(plus)(vec a, vec b, vec c) {
    return (vec){FUSED(0), FUSED(1), FUSED(2), FUSED(3)};
}
#endif

/* LANES numbers; `one` of each. */
static FAST INSIDE vec NAMED(read)(const char *x, int kind) {
    if (kind == NARROW) return WIDEN((const float *)x);
    vec v = *(const loose *)x, size = (vec)((bits)v & INT64_MAX);
    if (kind == MADE) return v;
    bits tiny = size < (kind == WIDE ? 0x1p-250 : 0x1p-500), huge = size > 0x1p250;
    return (vec)(((bits)v & ~tiny & ~huge) | ((bits)(v * INFINITY) & huge));
}

/* Lane j adds up x[j] y[j], x[j + 32] y[j + 32], ... Without y: squares. */
static FAST INSIDE double NAMED(dot)(const void *a, const void *b, int64_t size, const int kind) {
    enum { PARTS = 32 / LANES };
    vec sum[PARTS] = {{0}};
    double rest[2][32] = {{0}}, lane[LANES];
    for (int64_t i = 0; i < size; i += 32) {
        const char *x = (const char *)a + i * bytes(kind);
        const char *y = b ? (const char *)b + i * bytes(kind) : x;
        if (size - i < 32) {
            x = memcpy(rest[0], x, (size_t)((size - i) * bytes(kind)));
            y = b ? memcpy(rest[1], y, (size_t)((size - i) * bytes(kind))) : x;
        }
#pragma GCC unroll 8
        for (int p = 0; p < PARTS; p++)
            sum[p] = PLUS(NAMED(read)(x + p * LANES * bytes(kind), kind),
                          NAMED(read)(y + p * LANES * bytes(kind), kind), sum[p]);
    }
#pragma GCC unroll 3
    for (int half = PARTS / 2; half; half /= 2) EACH(p, half) sum[p] += sum[p + half];
    *(loose *)lane = sum[0];
    for (int half = LANES / 2; half; half /= 2) EACH(j, half) lane[j] = lane[j] + lane[j + half];
    return lane[0];
}

static FAST double NAMED(square)(const char *x, int64_t size, int wide) {
    if (wide == ROWS) return NAMED(dot)(x, 0, size, ROWS);
    return wide ? NAMED(dot)(x, 0, size, WIDE) : NAMED(dot)(x, 0, size, NARROW);
}

FAST void NAMED(winsor_squares)(const char *x, int64_t n, int64_t size, int wide, int root,
                                double *out) {
    EACH(i, n) {
        double square = NAMED(square)(x + i * size * bytes(wide), size, wide);
        out[i] = root ? sqrt(square) : square;
    }
}

/* Panels of `width` of the numbers j = start .. count - 1 at k = first .. first + depth - 1, weighted:
 * one k after the other. What stands in a panel beyond `count` is of no use to anyone. */
static FAST void NAMED(pack)(const side_t *side, int64_t start, int64_t count, int64_t first,
                             int64_t depth, int64_t width, const double *weights, int64_t places,
                             double *to) {
    const int wide = (int)side->wide;
    const int64_t size = bytes(wide), along = side->along * size, down = side->down * size;
    const char *from = side->from + first * down + start * along;
    count -= start;
    if (side->along != 1) { /* across: in groups of places that stay near */
        for (int64_t k = 0; k < depth; k += 8)
            EACH(j, count) {
                const char *x = from + j * along + k * down;
                double *panel = to + (j / width * depth + k) * width + j % width;
                EACH(l, least(8, depth - k)) panel[l * width] = one(x + l * down, wide);
                if (weights) EACH(l, least(8, depth - k))
                    panel[l * width] *= weights[(first + k + l) / places];
            }
        return;
    }
    EACH(k, depth) {
        const double w = weights ? weights[(first + k) / places] : 1.0;
        const vec spread = SPREAD(w);
        for (int64_t p = 0; p < count; p += width) {
            const char *x = from + p * size + k * down;
            double *panel = to + p * depth + k * width;
            int64_t j = 0, end = least(width, count - p);
            for (; j + LANES <= end; j += LANES)
                *(loose *)(panel + j) = NAMED(read)(x + j * size, wide) * spread;
            for (; j < end; j++) panel[j] = one(x + j * size, wide) * w;
        }
    }
}

/* c (high, columns) = or += a panel of `high` numbers, `step` apart, times one of WIDTH: packed, or
 * rows of float32 where they are, `stride` apart. */
static FAST INSIDE void NAMED(multiply)(const double *a, int64_t step, const void *b, int64_t stride,
                                        int64_t depth, double *c, int64_t apart, int64_t columns,
                                        int add, const int high, const int vectors,
                                        const int packed) {
    vec sum[HIGH][VECTORS], right[VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < high; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) sum[i][j] = SPREAD(0.0);
    for (int64_t k = 0; k < depth; k++, a += step) {
        const float *near = (const float *)b + k * stride;
        if (!packed) __builtin_prefetch(near + WIDTH), __builtin_prefetch(near + WIDTH + 16);
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++)
            right[j] = packed ? ((const vec *)b)[k * VECTORS + j] : WIDEN(near + j * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < high; i++)
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) sum[i][j] = PLUS(SPREAD(a[i]), right[j], sum[i][j]);
    }
    const int whole = columns >= vectors * LANES;
    double some[HIGH * WIDTH], *to = whole ? c : some;
    const int64_t step_to = whole ? apart : WIDTH;
    if (add && whole) {
#pragma GCC unroll 8
        for (int i = 0; i < high; i++)
#pragma GCC unroll 3
            for (int j = 0; j < vectors; j++) sum[i][j] += *(loose *)(c + i * apart + j * LANES);
    }
#pragma GCC unroll 8
    for (int i = 0; i < high; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vectors; j++) *(loose *)(to + i * step_to + j * LANES) = sum[i][j];
    if (!whole) moved(high, columns, some, WIDTH, c, apart, add);
}

/* The same for one row: as many columns as there are sums, so that rows of float32 are read at a go. */
static FAST void NAMED(ribbon)(const double *a, const float *b, int64_t stride, int64_t depth,
                               double *c, int add) {
    vec sum[HIGH * VECTORS];
#pragma GCC unroll 24
    for (int j = 0; j < HIGH * VECTORS; j++) sum[j] = SPREAD(0.0);
    for (int64_t k = 0; k < depth; k++, b += stride) {
#pragma GCC unroll 12
        for (int j = 0; j < HIGH * WIDTH; j += 16) __builtin_prefetch(b + HIGH * WIDTH + j);
#pragma GCC unroll 24
        for (int j = 0; j < HIGH * VECTORS; j++)
            sum[j] = PLUS(SPREAD(a[k]), WIDEN(b + j * LANES), sum[j]);
    }
#pragma GCC unroll 24
    for (int j = 0; j < HIGH * VECTORS; j++) {
        if (add) sum[j] += *(loose *)(c + j * LANES);
        *(loose *)(c + j * LANES) = sum[j];
    }
}

static FAST __attribute__((noipa)) void NAMED(strip)(int64_t high, const double *a, int64_t step,
                                                     const void *b, int64_t stride, int64_t depth,
                                                     double *c, int64_t apart, int64_t columns,
                                                     int add) {
#define SIZED(h, v, p) NAMED(multiply)(a, step, b, stride, depth, c, apart, columns, add, h, v, p)
#define OF(h) \
    case h: \
        if (stride) SIZED(h, 3, 0); \
        else if (columns > 2 * LANES) SIZED(h, 3, 1); \
        else if (columns > LANES) SIZED(h, 2, 1); \
        else SIZED(h, 1, 1); \
        break;
    switch (high) {
        OF(1) OF(2) OF(3) OF(4)
#if HIGH == 8
        OF(5) OF(6) OF(7) OF(8)
#endif
    }
}

/* c (m, n) = or +=, of at most TILE times BREADTH. Where `right` is null it is `left`, and c is made
 * from the diagonal on. For few rows, packing would take as long as the product. */
static FAST void NAMED(tile)(const side_t *left, const side_t *right, int64_t m, int64_t n,
                             int64_t start, int64_t depth, const double *weights, int64_t places,
                             double *c, int64_t apart, int add) {
    const side_t *other = right ? right : left;
    int64_t panels = (m + HIGH - 1) / HIGH, high = panels && right ? (m + panels - 1) / panels : HIGH;
    const int64_t near = m <= 16 && !other->wide && other->along == 1 ? n / WIDTH * WIDTH : 0;
    if (!depth && !add)
        EACH(i, m) memset(c + i * apart, 0, (size_t)n * sizeof *c);
    if (depth - start > SERIES) {
        for (int64_t k = start; k < depth; k += SERIES) {
            NAMED(tile)(left, right, m, n, k, least(depth, k + SERIES), weights, places,
                        tile_of_series, TILE, 0);
            moved(m, n, tile_of_series, TILE, c, apart, add || k);
        }
        return;
    }
    for (int64_t k = start; k < depth; k += BLOCK) {
        const int64_t size = least(BLOCK, depth - k);
        NAMED(pack)(other, near, n, k, size, WIDTH, 0, 1, packed_right);
        if (right) NAMED(pack)(left, 0, m, k, size, high, weights, places, packed_left);
        int64_t j = 0;
        for (; m == 1 && j + HIGH * WIDTH <= near; j += HIGH * WIDTH)
            NAMED(ribbon)(packed_left, (const float *)other->from + j + k * other->down, other->down,
                          size, c + j, add || k > start);
        for (; j < n; j += WIDTH) {
            const void *b = packed_right + (j - near) * size;
            if (j < near) b = other->from + (j + k * other->down) * sizeof(float);
            for (int64_t i = 0; i < (right ? m : least(m, j + WIDTH)); i += high)
                NAMED(strip)(least(high, m - i),
                             right ? packed_left + i * size
                                   : packed_right + i / WIDTH * WIDTH * size + i % WIDTH,
                             right ? high : WIDTH, b, j < near ? other->down : 0, size,
                             c + i * apart + j, apart, least(WIDTH, n - j),
                             add || k > start);
        }
    }
}

static FAST void NAMED(product)(const side_t *left, const side_t *right, int64_t m, int64_t n,
                                int64_t depth, const double *weights, int64_t places, double *out,
                                int64_t apart, int add) {
    const int near = m <= 16 && !right->wide && right->along == 1;
    const int64_t most = depth > SERIES ? TILE : near ? n + 1 : BREADTH, parts = n / most + 1;
    const int64_t breadth = (n + parts * 24 - 1) / (parts * 24) * 24;
    for (int64_t i = 0; i < m; i += TILE)
        for (int64_t j = 0; j < n; j += breadth) {
            side_t a = *left, b = *right;
            a.from += i * a.along * bytes((int)a.wide);
            b.from += j * b.along * bytes((int)b.wide);
            NAMED(tile)(&a, &b, least(TILE, m - i), least(breadth, n - j), 0, depth, weights, places,
                        out + i * apart + j, apart, add);
        }
}

/* out (m, n), rows `apart`: sum_k w_(k / places) left(i, k) right(j, k); a left without address is 1.
 * A side's number (j, k) is j `along` + k `down` numbers after its first. */
FAST void NAMED(winsor_product)(const char *left, int64_t along, int64_t down, const char *right,
                                int64_t right_along, int64_t right_down, int wide, int64_t m,
                                int64_t n, int64_t depth, const double *weights, int64_t places,
                                double *out, int64_t apart, int add) {
    static const float one = 1.0f;
    const side_t a = {left ? left : (const char *)&one, along, down, left ? wide : NARROW};
    const side_t b = {right, right_along, right_down, wide};
    NAMED(product)(&a, &b, m, n, depth, weights, places, out, apart, add);
}

/* out (n, k, d) of left (n, places, k) and right (n, places, d). */
FAST void NAMED(winsor_form)(const char *left, const char *right, int wide, int64_t n, int64_t places,
                             int64_t k, int64_t d, double *out) {
    EACH(i, n) {
        const side_t a = {left + i * places * k * bytes(wide), 1, k, wide};
        const side_t b = {right + i * places * d * bytes(wide), 1, d, wide};
        NAMED(product)(&a, &b, k, d, places, 0, 1, out + i * k * d, d, 0);
    }
}

/* From the rows themselves, a tile at a time. */
static FAST double NAMED(by_rows)(const char *left, int64_t k, const char *right, int64_t d,
                                  int64_t places, int wide) {
    double total = 0.0;
    for (int64_t i = 0; i < k; i += TILE)
        for (int64_t j = 0; j < d; j += TILE) {
            const int64_t rows = least(TILE, k - i), columns = least(TILE, d - j);
            const side_t a = {left + i * bytes(wide), 1, k, wide};
            const side_t b = {right + j * bytes(wide), 1, d, wide};
            NAMED(product)(&a, &b, rows, columns, places, 0, 1, tile_of_left, TILE, 0);
            EACH(r, rows) total += NAMED(dot)(tile_of_left + r * TILE, 0, columns, MADE);
        }
    return total;
}

/* From Gram matrices of places, of which tiles from the diagonal on are made. */
static FAST double NAMED(by_grams)(const left_t *lefts, int64_t count, int64_t row,
                                   const char *right, int wide, int64_t places, int64_t d,
                                   double *reaches) {
    double total = 0.0;
    for (int64_t s = 0; s < places; s += TILE)
        for (int64_t t = s; t < places; t += TILE)
            for (int64_t l = -1; l < count; l++) {
                const int64_t m = least(TILE, places - s), n = least(TILE, places - t);
                const int64_t k = l < 0 ? d : lefts[l].size, size = k * bytes(wide);
                const char *from = l < 0 ? right : lefts[l].from + row * places * size;
                const side_t a = {from + s * size, k, 1, wide}, b = {from + t * size, k, 1, wide};
                NAMED(tile)(&a, s == t ? 0 : &b, m, n, 0, k, 0, 1, l < 0 ? tile_of_right : tile_of_left,
                            TILE, 0);
                EACH(i, l < 0 ? 0 : m) {
                    const double *e = tile_of_left + i * TILE, *x = tile_of_right + i * TILE;
                    const int64_t beyond = s == t ? i + 1 : 0; /* the diagonal */
                    total += 2.0 * NAMED(dot)(e + beyond, x + beyond, n - beyond, MADE);
                    if (s != t) continue;
                    total += e[i] * x[i];
                    reaches[l] += sqrt(e[i]) * sqrt(x[i]);
                }
            }
    return total < 0.0 ? 0.0 : total;
}

/* Squared norms (n) and lengths if nothing cancels (n, count) of `count` maps of one input. */
FAST void NAMED(winsor_factor_norms)(const left_t *lefts, int64_t count, const char *right, int wide,
                                     int64_t n, int64_t places, int64_t d, double *norms,
                                     double *reaches) {
    int64_t outputs = 0;
    EACH(l, count) outputs += lefts[l].size;
    const double grams = 0.5 * (double)(places + 32) * (double)(outputs + d); /* strips are broad */
    const int by_grams = places > 1 && grams < (double)outputs * (double)d;
    EACH(i, n) {
        const char *x = right + i * places * d * bytes(wide);
        double *reach = reaches + i * count;
        memset(reach, 0, sizeof *reach * (size_t)count);
        norms[i] = by_grams ? NAMED(by_grams)(lefts, count, i, x, wide, places, d, reach) : 0.0;
        EACH(l, by_grams ? 0 : count) {
            const int64_t k = lefts[l].size, size = k * bytes(wide);
            const char *e = lefts[l].from + i * places * size;
            double both = 0.0;
            EACH(t, places) {
                both = NAMED(square)(e + t * size, k, wide) *
                       NAMED(square)(x + t * d * bytes(wide), d, wide);
                reach[l] += sqrt(both);
            }
            norms[i] += places > 1 ? NAMED(by_rows)(e, k, x, d, places, wide) : both;
        }
    }
}

/* Norms over all maps; returns whether every loss and every norm is finite. */
FAST int NAMED(winsor_norms)(const map_t *maps, int64_t count, int64_t n, const float *losses,
                             double *norms) {
    int fine = 1;
    EACH(i, n) {
        norms[i] = 0.0;
        for (const map_t *m = maps; m < maps + count; m++) {
            double x = m->x ? NAMED(square)(m->x + i * m->inputs * 4, m->inputs, 0) : 0.0;
            double e = NAMED(square)(m->e + i * m->outputs * 4, m->outputs, 0);
            norms[i] += e * (x + (double)m->has_bias);
        }
        norms[i] = sqrt(norms[i]);
        fine &= norms[i] <= DBL_MAX && fabsf(losses[i]) <= FLT_MAX;
    }
    return fine;
}

FAST void NAMED(winsor_sums)(const map_t *maps, int64_t count, int64_t n, const double *weights) {
    for (const map_t *m = maps; m < maps + count; m++) {
        const int64_t k = m->outputs, d = m->inputs;
        if (m->weight)
            NAMED(winsor_product)(m->e, 1, k, m->x, 1, d, 0, k, d, n, weights, 1, m->weight, d, 0);
        if (m->bias)
            NAMED(winsor_product)(0, 0, 0, m->e, 1, k, 0, 1, k, n, weights, 1, m->bias, k, 0);
    }
}

/* out (size, width) += w_(t / places) right(t) by index(t); `order` puts equal indices side by side.
 * Indices below zero are no places. Returns how many are too large: those are left out. */
FAST int64_t NAMED(winsor_scatter)(const char *right, int wide, const int64_t *index,
                                   const int64_t *order, int64_t count, int64_t places,
                                   int64_t width, int64_t size, const double *weights, double *out) {
    int64_t beyond = 0;
    double sum[BREADTH], series[BREADTH];
    for (int64_t t = 0, end; t < count; t = end) {
        const int64_t at = index[order[t]];
        for (end = t + 1; end < count && index[order[end]] == at;) end++;
        if (at >= size) beyond += end - t;
        for (int64_t from = 0; from < (at < 0 || at >= size ? 0 : width); from += BREADTH) {
            const int64_t some = least(BREADTH, width - from);
            for (int64_t r = t; r < end; r++) {
                const char *x = right + (order[r] * width + from) * bytes(wide);
                const double w = weights ? weights[order[r] / places] : 1.0;
                if ((r - t) % BLOCK == 0) memset(sum, 0, (size_t)some * 8);
                if ((r - t) % SERIES == 0) memset(series, 0, (size_t)some * 8);
                if (wide)
                    EACH(j, some) sum[j] = __builtin_fma(one(x + j * 8, ROWS), w, sum[j]);
                else
                    EACH(j, some) sum[j] = __builtin_fma(one(x + j * 4, NARROW), w, sum[j]);
                if (r + 1 == end || (r + 1 - t) % BLOCK == 0) moved(1, some, sum, 0, series, 0, 1);
                if (r + 1 == end || (r + 1 - t) % SERIES == 0)
                    moved(1, some, series, 0, out + at * width + from, 0, 1);
            }
        }
    }
    return beyond;
}

#undef vec
#undef loose
#undef bits
#undef WIDTH
#undef SIZED
#undef OF
#endif
