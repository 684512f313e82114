/* Lattice noise: the same bits as lattice.py draws, one call per tensor. And digests of sums.
 *
 * Plain C for x86-64 with AES-NI (VAES where there is) and AVX2, no Python headers: loaded by
 * ctypes, which lets other threads run meanwhile. Every floating-point operation is a single IEEE
 * operation in the order in which numpy does it. Compile with -ffp-contract=off and without
 * -ffast-math. */

#include <stdint.h>
#include <string.h>

typedef struct {
    const int16_t *flat;          /* 2^14 signed cells */
    int64_t residual_from;
    const double *slope, *edge, *steep;
    double curve;
    int64_t alias_bits;
    const uint64_t *alias_limit;
    const int64_t *alias_symbol;  /* kept[columns], other[columns] */
    const int64_t *band_start;
    const uint64_t *band_upto;
    int64_t cells;
} law_t;

#define INDEX_SHIFT 50
#define SIGN_SHIFT 49
#define CELL_BITS 5
#define DOMAIN_SHIFT 48
#define FAR_DOMAIN 0x8000
#define CHUNK 1024
#define LIMIT 1125899906842624.0 /* 2^50 */

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define FAST __attribute__((target("aes,avx2,sse4.1")))
#define WIDE __attribute__((target("aes,vaes,avx2,sse4.1")))

static int wide; /* two cipher blocks per instruction */
static int wide_products; /* two carry-less products per instruction */

int winsor_supported(void) {
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx2")) return 0;
    if (!__builtin_cpu_supports("pclmul")) return 0;
    wide = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 9 & 1); /* VAES */
    wide_products = wide && (c >> 10 & 1); /* VPCLMULQDQ */
    return 1;
}

/* For tests: as on a processor without VAES and VPCLMULQDQ. */
void winsor_narrow(void) { wide = wide_products = 0; }

typedef struct { __m128i round[15]; } schedule_t;

static FAST inline __m128i spread(__m128i key, __m128i word) {
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, word);
}

#define EVEN(i, constant)                                                                     \
    s->round[i] = spread(s->round[(i) - 2], _mm_shuffle_epi32(                                \
        _mm_aeskeygenassist_si128(s->round[(i) - 1], constant), 0xff))
#define ODD(i)                                                                                \
    s->round[i] = spread(s->round[(i) - 2], _mm_shuffle_epi32(                                \
        _mm_aeskeygenassist_si128(s->round[(i) - 1], 0), 0xaa))

/* FIPS 197, section 5.2, for 256 bits. */
static FAST void expand(schedule_t *s, const uint8_t key[32]) {
    s->round[0] = _mm_loadu_si128((const __m128i *)key);
    s->round[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    EVEN(2, 0x01); ODD(3); EVEN(4, 0x02); ODD(5); EVEN(6, 0x04); ODD(7);
    EVEN(8, 0x08); ODD(9); EVEN(10, 0x10); ODD(11); EVEN(12, 0x20); ODD(13); EVEN(14, 0x40);
}

/* The counter block: entry, then place, both big-endian. */
static FAST inline __m128i counter(uint64_t entry, uint64_t place) {
    return _mm_set_epi64x((int64_t)__builtin_bswap64(place), (int64_t)__builtin_bswap64(entry));
}

/* One block per element, from a domain of counters of its own. */
static FAST void scattered(const schedule_t *s, uint64_t entry, uint64_t domain,
                           const uint64_t *element, int count, uint64_t *out) {
    uint64_t high = domain << DOMAIN_SHIFT;
    int i = 0;
    for (; i + 4 <= count; i += 4) {
        __m128i x[4];
        for (int j = 0; j < 4; j++)
            x[j] = _mm_xor_si128(counter(entry, high | element[i + j]), s->round[0]);
        for (int r = 1; r < 14; r++)
            for (int j = 0; j < 4; j++) x[j] = _mm_aesenc_si128(x[j], s->round[r]);
        for (int j = 0; j < 4; j++)
            _mm_storeu_si128((__m128i *)out + i + j, _mm_aesenclast_si128(x[j], s->round[14]));
    }
    for (; i < count; i++) {
        __m128i x = _mm_xor_si128(counter(entry, high | element[i]), s->round[0]);
        for (int r = 1; r < 14; r++) x = _mm_aesenc_si128(x, s->round[r]);
        _mm_storeu_si128((__m128i *)out + i, _mm_aesenclast_si128(x, s->round[14]));
    }
}

/* As `keystream`, two blocks at a time. */
static WIDE void keystream_wide(const schedule_t *s, uint64_t entry, uint64_t place,
                                int64_t blocks, uint64_t *out) {
    const __m256i swap = _mm256_set_epi64x(0x08090a0b0c0d0e0f, 0x0001020304050607,
                                           0x08090a0b0c0d0e0f, 0x0001020304050607);
    const __m256i two = _mm256_set_epi64x(2, 0, 2, 0);
    __m256i now = _mm256_set_epi64x((int64_t)place + 1, (int64_t)entry, (int64_t)place,
                                    (int64_t)entry);
    for (int64_t i = 0; i < blocks; i += 16, out += 32) {
        __m256i x[8], k = _mm256_broadcastsi128_si256(s->round[0]);
        for (int j = 0; j < 8; j++) {
            x[j] = _mm256_xor_si256(_mm256_shuffle_epi8(now, swap), k);
            now = _mm256_add_epi64(now, two);
        }
        for (int r = 1; r < 14; r++) {
            k = _mm256_broadcastsi128_si256(s->round[r]);
            for (int j = 0; j < 8; j++) x[j] = _mm256_aesenc_epi128(x[j], k);
        }
        k = _mm256_broadcastsi128_si256(s->round[14]);
        for (int j = 0; j < 8; j++)
            _mm256_storeu_si256((__m256i *)out + j, _mm256_aesenclast_epi128(x[j], k));
    }
}

/* ``blocks`` consecutive blocks, a multiple of 16. */
static FAST void keystream(const schedule_t *s, uint64_t entry, uint64_t place, int64_t blocks,
                           uint64_t *out) {
    if (wide) {
        keystream_wide(s, entry, place, blocks, out);
        return;
    }
    for (int64_t i = 0; i < blocks; i += 8, place += 8, out += 16) {
        __m128i x[8];
        for (int j = 0; j < 8; j++) x[j] = _mm_xor_si128(counter(entry, place + j), s->round[0]);
        for (int r = 1; r < 14; r++) {
            __m128i k = s->round[r];
            for (int j = 0; j < 8; j++) x[j] = _mm_aesenc_si128(x[j], k);
        }
        for (int j = 0; j < 8; j++)
            _mm_storeu_si128((__m128i *)out + j, _mm_aesenclast_si128(x[j], s->round[14]));
    }
}

/* A symbol further out: each band is reached through the one before. */
static FAST int64_t far_symbol(const law_t *law, const schedule_t *s, uint64_t entry,
                               uint64_t element) {
    uint64_t words[2];
    for (int64_t band = 0;; band++) {
        int64_t last = law->band_start[band + 1];
        scattered(s, entry, FAR_DOMAIN + (uint64_t)band, &element, 1, words);
        for (int64_t symbol = law->band_start[band]; symbol < last; symbol++)
            if (words[0] <= law->band_upto[symbol]) return symbol;
    }
}

static FAST int64_t symbol_of(const law_t *law, const schedule_t *s, uint64_t entry,
                              uint64_t element, uint64_t word) {
    int rest = 64 - (int)law->alias_bits;
    uint64_t column = word >> rest;
    uint64_t other = (word & (((uint64_t)1 << rest) - 1)) >= law->alias_limit[column];
    int64_t symbol = law->alias_symbol[(other << law->alias_bits) + column];
    return symbol >= 0 ? symbol : far_symbol(law, s, entry, element);
}

/* t < exp(-t (slope + curve t)) - edge, t weighed as in lattice.py. exp by Taylor to degree 13. */
static FAST void accept(const law_t *law, const int32_t *cell, const uint64_t *slot,
                        const uint64_t *height, int count, double unit, int32_t *accepted) {
    for (int i = 0; i < count; i++) {
        double t = ((double)(int64_t)slot[i] + 0.5) * unit;
        double y = law->curve * t;
        y = y + law->slope[cell[i]];
        y = y * t;
        double sum = -1.0 / 6227020800.0;
#define HORNER(coefficient) sum = sum * y; sum = sum + (coefficient);
        HORNER(1.0 / 479001600.0) HORNER(-1.0 / 39916800.0) HORNER(1.0 / 3628800.0)
        HORNER(-1.0 / 362880.0) HORNER(1.0 / 40320.0) HORNER(-1.0 / 5040.0) HORNER(1.0 / 720.0)
        HORNER(-1.0 / 120.0) HORNER(1.0 / 24.0) HORNER(-1.0 / 6.0) HORNER(0.5) HORNER(-1.0)
        HORNER(1.0)
        double wedge = sum - law->edge[cell[i]];
        t = 1.0 / (1 << CELL_BITS) - t;
        t = t * law->steep[cell[i]];
        t = t * (double)(int64_t)(height[2 * i] >> 11);
        accepted[i] = t < wedge;
    }
}

static inline uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Rest and wedges: see tables.py. ``late`` are places in this chunk. */
static FAST void residual(const law_t *law, const schedule_t *s, uint64_t entry, uint64_t first,
                          const uint64_t *word, const int32_t *late, int lates, int bits,
                          double *out) {
    uint64_t element[CHUNK], words[2 * CHUNK], tried[CHUNK];
    int32_t place[CHUNK], cell[CHUNK], accepted[CHUNK];
    int slot_bits = bits - CELL_BITS, waiting = 0;
    uint64_t mask = ((uint64_t)1 << slot_bits) - 1;
    element[0] = 0; /* compilers do not see that only the first `lates` are read */
    double unit = 1.0 / (double)((uint64_t)1 << bits);
    for (int i = 0; i < lates; i++) element[i] = first + (uint64_t)late[i];
    scattered(s, entry, 1, element, lates, words);
    for (int i = 0; i < lates; i++) {
        int64_t symbol = symbol_of(law, s, entry, element[i], words[2 * i]);
        uint64_t slot = word[late[i]] & mask;
        uint64_t base = (uint64_t)(symbol >> 1) << slot_bits;
        out[late[i]] = (double)(int64_t)(base + slot) + 0.5; /* of the rest: done */
        place[waiting] = late[i];
        cell[waiting] = (int32_t)(symbol >> 1);
        tried[waiting] = smaller(slot, words[2 * i + 1] & mask);
        element[waiting] = element[i];
        waiting += (int)(symbol & 1);
    }
    for (uint64_t domain = 2; waiting; domain += 2) {
        scattered(s, entry, domain, element, waiting, words);
        accept(law, cell, tried, words, waiting, unit, accepted);
        int left = 0;
        for (int i = 0; i < waiting; i++) {
            uint64_t base = (uint64_t)cell[i] << slot_bits;
            out[place[i]] = (double)(int64_t)(base + tried[i]) + 0.5;
            place[left] = place[i];
            cell[left] = cell[i];
            element[left] = element[i];
            left += !accepted[i];
        }
        waiting = left;
        scattered(s, entry, domain + 1, element, waiting, words);
        for (int i = 0; i < waiting; i++)
            tried[i] = smaller(words[2 * i] & mask, words[2 * i + 1] & mask);
    }
    for (int i = 0; i < lates; i++)
        if ((word[late[i]] >> SIGN_SHIFT) & 1) out[late[i]] = -out[late[i]];
}

/* Noise of elements [first, first + count), count <= CHUNK, in units of the lattice. */
static FAST void chunk(const law_t *law, const schedule_t *s, uint64_t entry, uint64_t first,
                       int64_t count, int bits, double *out) {
    uint64_t words[CHUNK + 32];
    int32_t late[CHUNK + 4];
    int64_t blocks = (count + (int64_t)(first & 1) + 1) / 2;
    keystream(s, entry, first >> 1, (blocks + 15) / 16 * 16, words);
    const uint64_t *word = words + (first & 1);
    int slot_bits = bits - CELL_BITS, lates = 0;
    uint64_t mask = ((uint64_t)1 << slot_bits) - 1;
    int64_t i = 0;
    /* Four at a time. Whole numbers below 2^51 become float64 by the bits of 1.5 * 2^52. */
    const double magic = 6755399441055744.0;
    const __m256i magic_bits = _mm256_castpd_si256(_mm256_set1_pd(magic));
    const __m256i low = _mm256_set1_epi64x((int64_t)mask);
    const __m256i regular = _mm256_set1_epi64x(law->residual_from - 1);
    const __m128i shift = _mm_cvtsi32_si128(slot_bits);
    for (; i + 4 <= count; i += 4) {
        __m256i w = _mm256_loadu_si256((const __m256i *)(word + i));
        __m256i index = _mm256_srli_epi64(w, INDEX_SHIFT);
        __m256i cell = _mm256_set_epi64x(law->flat[word[i + 3] >> INDEX_SHIFT],
                                         law->flat[word[i + 2] >> INDEX_SHIFT],
                                         law->flat[word[i + 1] >> INDEX_SHIFT],
                                         law->flat[word[i] >> INDEX_SHIFT]);
        __m256i whole = _mm256_add_epi64(_mm256_sll_epi64(cell, shift), _mm256_and_si256(w, low));
        __m256d value = _mm256_castsi256_pd(_mm256_add_epi64(whole, magic_bits));
        value = _mm256_sub_pd(value, _mm256_set1_pd(magic));
        _mm256_storeu_pd(out + i, _mm256_add_pd(value, _mm256_set1_pd(0.5)));
        int found = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(index, regular)));
        for (; found; found &= found - 1) late[lates++] = (int32_t)i + __builtin_ctz(found);
    }
    for (; i < count; i++) {
        uint64_t index = word[i] >> INDEX_SHIFT;
        int64_t whole = (int64_t)law->flat[index] * ((int64_t)1 << slot_bits);
        out[i] = (double)(whole + (int64_t)(word[i] & mask)) + 0.5;
        late[lates] = (int32_t)i;
        lates += (int64_t)index >= law->residual_from;
    }
    residual(law, s, entry, first, word, late, lates, bits, out);
}

FAST void winsor_draw(const law_t *law, const uint8_t *key, uint64_t entry, uint64_t first,
                      int64_t count, int bits, int64_t entries, double *out) {
    schedule_t s;
    expand(&s, key);
    for (int64_t row = 0; row < entries; row++, entry++, out += count) {
        for (int64_t done = 0; done < count; done += CHUNK) {
            int64_t now = count - done < CHUNK ? count - done : CHUNK;
            chunk(law, &s, entry, first + (uint64_t)done, now, bits, out + done);
        }
    }
}

/* Four values: v = rint(v / gamma, within the limits) + noise, times gamma. The comparisons are those of
 * the loop below: -LIMIT > v ? -LIMIT : v, then LIMIT < v ? LIMIT : v, which keep not-a-number. */
static FAST inline __m256d on_lattice(__m256d v, __m256d noise, __m256d gamma, __m256d inverse) {
    v = _mm256_mul_pd(v, inverse);
    v = _mm256_max_pd(_mm256_set1_pd(-LIMIT), v);
    v = _mm256_min_pd(_mm256_set1_pd(LIMIT), v);
    v = _mm256_round_pd(v, _MM_FROUND_CUR_DIRECTION);
    return _mm256_mul_pd(_mm256_add_pd(v, noise), gamma);
}

static FAST inline __m256d load_f32(const float *x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
static FAST inline __m256d load_f64(const double *x) { return _mm256_loadu_pd(x); }
static FAST inline void store_f32(float *x, __m256d v) { _mm_storeu_ps(x, _mm256_cvtpd_ps(v)); }
static FAST inline void store_f64(double *x, __m256d v) { _mm256_storeu_pd(x, v); }

/* x = ((rounded to the lattice) + noise) * gamma, through float64. */
#define APPLY(name, real, load, store)                                                        \
    FAST void name(const double *noise, int64_t count, double gamma, double inverse, real *x) { \
        const __m256d g = _mm256_set1_pd(gamma), n = _mm256_set1_pd(inverse);                 \
        int64_t i = 0;                                                                        \
        for (; i + 4 <= count; i += 4)                                                        \
            store(x + i, on_lattice(load(x + i), _mm256_loadu_pd(noise + i), g, n));          \
        for (; i < count; i++) {                                                              \
            double v = (double)x[i] * inverse;                                                \
            v = v < -LIMIT ? -LIMIT : v;                                                      \
            v = v > LIMIT ? LIMIT : v;                                                        \
            v = __builtin_rint(v) + noise[i];                                                 \
            x[i] = (real)(v * gamma);                                                         \
        }                                                                                     \
    }
APPLY(winsor_apply_f32, float, load_f32, store_f32)
APPLY(winsor_apply_f64, double, load_f64, store_f64)

#define ADD(name, apply, real)                                                                \
    FAST void name(const law_t *law, const uint8_t *key, uint64_t entry, uint64_t first,      \
                   int64_t count, int bits, double gamma, double inverse, real *x) {          \
        schedule_t s;                                                                         \
        double noise[CHUNK];                                                                  \
        expand(&s, key);                                                                      \
        for (int64_t done = 0; done < count; done += CHUNK) {                                 \
            int64_t now = count - done < CHUNK ? count - done : CHUNK;                        \
            chunk(law, &s, entry, first + (uint64_t)done, now, bits, noise);                  \
            apply(noise, now, gamma, inverse, x + done);                                      \
        }                                                                                     \
    }
ADD(winsor_add_f32, winsor_apply_f32, float)
ADD(winsor_add_f64, winsor_apply_f64, double)

/* ---- Digests: GMAC with AES-128 (NIST SP 800-38D), a finite check in the same pass ---- */

#define MAC __attribute__((target("aes,pclmul,avx2,sse4.1")))
#define WIDE_MAC __attribute__((target("aes,pclmul,vpclmulqdq,avx2,sse4.1")))
#define TOGETHER 16 /* blocks between two reductions */

typedef struct { __m128i low, middle, high; } product_t;

static MAC inline void multiply(product_t *sum, __m128i a, __m128i b) {
    sum->low = _mm_xor_si128(sum->low, _mm_clmulepi64_si128(a, b, 0x00));
    sum->high = _mm_xor_si128(sum->high, _mm_clmulepi64_si128(a, b, 0x11));
    sum->middle = _mm_xor_si128(sum->middle, _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x10),
                                                           _mm_clmulepi64_si128(a, b, 0x01)));
}

/* Gueron and Kounavis, "Intel carry-less multiplication instruction", 2014, figure 5: one bit to
 * the left because bits are reflected, then modulo x^128 + x^7 + x^2 + x + 1. */
static MAC inline __m128i reduced(product_t sum) {
    __m128i low = _mm_xor_si128(sum.low, _mm_slli_si128(sum.middle, 8));
    __m128i high = _mm_xor_si128(sum.high, _mm_srli_si128(sum.middle, 8));
    __m128i carry = _mm_srli_epi32(low, 31), over = _mm_srli_epi32(high, 31);
    low = _mm_or_si128(_mm_slli_epi32(low, 1), _mm_slli_si128(carry, 4));
    high = _mm_or_si128(_mm_slli_epi32(high, 1), _mm_slli_si128(over, 4));
    high = _mm_or_si128(high, _mm_srli_si128(carry, 12));
    __m128i fold = _mm_xor_si128(_mm_slli_epi32(low, 31), _mm_slli_epi32(low, 30));
    fold = _mm_xor_si128(fold, _mm_slli_epi32(low, 25));
    low = _mm_xor_si128(low, _mm_slli_si128(fold, 12));
    __m128i more = _mm_xor_si128(_mm_srli_epi32(low, 1), _mm_srli_epi32(low, 2));
    more = _mm_xor_si128(more, _mm_srli_epi32(low, 7));
    more = _mm_xor_si128(more, _mm_srli_si128(fold, 4));
    return _mm_xor_si128(high, _mm_xor_si128(low, more));
}

#define NEXT(i, constant)                                                                     \
    k[i] = spread(k[(i) - 1], _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[(i) - 1], constant), \
                                                0xff))

static MAC inline __m128i aes128(const __m128i *k, __m128i x) {
    x = _mm_xor_si128(x, k[0]);
    for (int r = 1; r < 10; r++) x = _mm_aesenc_si128(x, k[r]);
    return _mm_aesenclast_si128(x, k[10]);
}

/* Whether some of 16 bytes of floats of ``width`` bytes are infinite or not a number. */
static MAC inline __m128i odd(__m128i x, int width) {
    __m128i all = width == 4 ? _mm_set1_epi32(0x7f800000) : _mm_set1_epi64x(0x7ff0000000000000);
    x = _mm_and_si128(x, all);
    return width == 4 ? _mm_cmpeq_epi32(x, all) : _mm_cmpeq_epi64(x, all);
}

static MAC inline __m256i odd_pair(__m256i x, int width) {
    __m256i all = width == 4 ? _mm256_set1_epi32(0x7f800000)
                             : _mm256_set1_epi64x(0x7ff0000000000000);
    x = _mm256_and_si256(x, all);
    return width == 4 ? _mm256_cmpeq_epi32(x, all) : _mm256_cmpeq_epi64(x, all);
}

static MAC inline __m128i halves(__m256i x) {
    return _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* Two blocks per instruction; the middle by Karatsuba's way, (a0 + a1)(b0 + b1), so three products
 * instead of four. ``power`` descends, ``folded`` holds the sums of its halves. Returns how many
 * bytes were taken: whole groups only. */
static WIDE_MAC int64_t in_pairs(const uint8_t *data, int64_t bytes, int width,
                                 const __m256i *power, const __m256i *folded, __m128i *state,
                                 __m128i *strange) {
    const __m256i swap = _mm256_broadcastsi128_si256(
        _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f));
    __m256i found = _mm256_setzero_si256();
    __m128i now = *state;
    int64_t done = 0;
    for (; done + 16 * TOGETHER <= bytes; done += 16 * TOGETHER) {
        __m256i low = _mm256_setzero_si256(), middle = low, high = low;
        for (int j = 0; j < TOGETHER / 2; j++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(data + done) + j);
            found = _mm256_or_si256(found, odd_pair(x, width));
            x = _mm256_shuffle_epi8(x, swap);
            if (j == 0) x = _mm256_xor_si256(x, _mm256_zextsi128_si256(now));
            __m256i both = _mm256_xor_si256(x, _mm256_shuffle_epi32(x, 0x4e));
            low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128(x, power[j], 0x00));
            high = _mm256_xor_si256(high, _mm256_clmulepi64_epi128(x, power[j], 0x11));
            middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(both, folded[j], 0x00));
        }
        middle = _mm256_xor_si256(middle, _mm256_xor_si256(low, high));
        product_t sum = {halves(low), halves(middle), halves(high)};
        now = reduced(sum);
    }
    *state = now;
    *strange = _mm_or_si128(_mm256_castsi256_si128(found), _mm256_extracti128_si256(found, 1));
    return done;
}

/* The tag of ``bytes`` bytes, as AES-GCM has it for associated data alone; returns whether all
 * floats of ``width`` bytes among them are finite. */
MAC int winsor_gmac(const uint8_t *key, const uint8_t *nonce, const uint8_t *data, int64_t bytes,
                    int width, uint8_t *tag) {
    const __m128i swap = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    const __m128i zero = _mm_setzero_si128();
    __m128i k[11], power[TOGETHER], state = zero, strange = zero;
    uint8_t block[16] = {0};
    k[0] = _mm_loadu_si128((const __m128i *)key);
    NEXT(1, 0x01); NEXT(2, 0x02); NEXT(3, 0x04); NEXT(4, 0x08); NEXT(5, 0x10);
    NEXT(6, 0x20); NEXT(7, 0x40); NEXT(8, 0x80); NEXT(9, 0x1b); NEXT(10, 0x36);
    power[0] = _mm_shuffle_epi8(aes128(k, zero), swap);
    for (int j = 1; j < TOGETHER; j++) {
        product_t one = {zero, zero, zero};
        multiply(&one, power[j - 1], power[0]);
        power[j] = reduced(one);
    }
    int64_t done = 0;
    if (wide_products && bytes >= 16 * TOGETHER) {
        __m256i pairs[TOGETHER / 2], folded[TOGETHER / 2];
        for (int j = 0; j < TOGETHER / 2; j++) {
            pairs[j] = _mm256_inserti128_si256(
                _mm256_castsi128_si256(power[TOGETHER - 1 - 2 * j]), power[TOGETHER - 2 - 2 * j], 1);
            folded[j] = _mm256_xor_si256(pairs[j], _mm256_shuffle_epi32(pairs[j], 0x4e));
        }
        done = in_pairs(data, bytes, width, pairs, folded, &state, &strange);
    }
    for (; done + 16 * TOGETHER <= bytes; done += 16 * TOGETHER) {
        product_t sum = {zero, zero, zero};
        for (int j = 0; j < TOGETHER; j++) {
            __m128i x = _mm_loadu_si128((const __m128i *)(data + done) + j);
            strange = _mm_or_si128(strange, odd(x, width));
            x = _mm_shuffle_epi8(x, swap);
            multiply(&sum, j ? x : _mm_xor_si128(x, state), power[TOGETHER - 1 - j]);
        }
        state = reduced(sum);
    }
    for (; done < bytes; done += 16) {
        int64_t left = bytes - done < 16 ? bytes - done : 16;
        memset(block, 0, 16);
        memcpy(block, data + done, (size_t)left);
        __m128i x = _mm_loadu_si128((const __m128i *)block);
        strange = _mm_or_si128(strange, odd(x, width));
        product_t one = {zero, zero, zero};
        multiply(&one, _mm_xor_si128(_mm_shuffle_epi8(x, swap), state), power[0]);
        state = reduced(one);
    }
    product_t last = {zero, zero, zero};
    multiply(&last, _mm_xor_si128(_mm_set_epi64x(8 * bytes, 0), state), power[0]);
    state = _mm_shuffle_epi8(reduced(last), swap);
    memset(block, 0, 16);
    memcpy(block, nonce, 12);
    block[15] = 1;
    state = _mm_xor_si128(state, aes128(k, _mm_loadu_si128((const __m128i *)block)));
    _mm_storeu_si128((__m128i *)tag, state);
    return _mm_testz_si128(strange, strange);
}

#else
int winsor_supported(void) { return 0; }
#endif
