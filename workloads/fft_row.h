/* Transform of one row of complex numbers, for fft and ft: in place, radix 2. */
#ifndef FFT_ROW_H
#define FFT_ROW_H

#include <math.h>
#include <stddef.h>

struct complex {
    double re, im;
};

static inline struct complex times(struct complex a, struct complex b) {
    return (struct complex){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* exp(-2 pi i k / n) */
static inline struct complex root(size_t k, size_t n) {
    double angle = -2 * M_PI * (double)k / (double)n;
    return (struct complex){cos(angle), sin(angle)};
}

static inline void fill_roots(struct complex *roots, size_t n) {
    for (size_t k = 0; k < n; k++)
        roots[k] = root(k, n);
}

/* Transforms a row in place. `n` is a power of two, `roots` come from fill_roots(); `sign` is 1 for
 * forwards and -1 for backwards. Neither direction divides by n. */
static inline void transform_row(struct complex *row, size_t n, const struct complex *roots,
                                 int sign) {
    for (size_t i = 1, j = 0; i < n; i++) {
        size_t bit = n >> 1;
        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) {
            struct complex other = row[i];
            row[i] = row[j];
            row[j] = other;
        }
    }
    for (size_t half = 1; half < n; half *= 2)
        for (size_t start = 0; start < n; start += 2 * half)
            for (size_t k = 0; k < half; k++) {
                struct complex w = roots[k * (n / (2 * half))];
                w.im *= sign;
                struct complex *a = &row[start + k], *b = a + half, t = times(*b, w);
                *b = (struct complex){a->re - t.re, a->im - t.im};
                *a = (struct complex){a->re + t.re, a->im + t.im};
            }
}

#endif
