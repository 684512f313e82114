/* Weighted rows added up by index: out[index_it] += w_i right_it, place after place.
 *
 * One pass over the rows where torch takes two (scale, then index_add_), with the same digits: every
 * operation is a single IEEE operation in the same order. Compile with -ffp-contract=off. */

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define FAST __attribute__((target("avx2")))
int winsor_supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define FAST
int winsor_supported(void) { return 1; }
#endif

/* right is (n, places, width), index (n, places), out (size, width); a negative index is no place.
 * Returns how many indices are too large: those are left out. */
FAST int64_t winsor_scatter(const float *right, const int64_t *index, int64_t n, int64_t places,
                            int64_t width, int64_t size, const float *weights, float *out) {
    int64_t beyond = 0;
    for (int64_t i = 0; i < n; i++) {
        const float w = weights[i];
        for (int64_t t = 0; t < places; t++, index++, right += width) {
            if (*index < 0) continue;
            if (*index >= size) {
                beyond++;
                continue;
            }
            float *to = out + *index * width;
            for (int64_t j = 0; j < width; j++) to[j] = to[j] + right[j] * w;
        }
    }
    return beyond;
}
