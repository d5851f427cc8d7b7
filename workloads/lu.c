/* lu: dense factorisation in blocks without pivoting, as in SPLASH-2.
 *
 * Access pattern, by construction, with T = R x C threads, R the largest divisor of T up to its
 * square root; blocks are contiguous in memory, 16 x 16 elements (2 KiB) unless told otherwise:
 *   matrix     thread r C + c reads and writes the blocks (I, J) with I mod R = r and
 *              J mod C = c; in step K all read the diagonal block, and the blocks of row K and
 *              column K that stand beside and above their own
 *   original   the same blocks, read only: what each round begins with
 * The master initialises both. */
#include "workload.h"
#include <math.h>

static size_t n, size, blocks;
static double *matrix, *original;

static double *block(double *of, size_t i, size_t j) {
    return of + (i * blocks + j) * size * size;
}

static double *element(double *of, size_t i, size_t j) {
    return block(of, i / size, j / size) + i % size * size + j % size;
}

/* Diagonally dominant, so that no pivoting is needed. */
static void fill(void) {
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            *element(original, i, j) = unit(random_at(i * n + j)) - 0.5 + (i == j ? n : 0);
}

static int owned(size_t i, size_t j) {
    int team = omp_get_num_threads(), rows = sqrt(team);
    while (team % rows)
        rows--;
    int columns = team / rows;
    return (int)(i % rows) * columns + (int)(j % columns) == omp_get_thread_num();
}

static void factor(double *a) {
    for (size_t k = 0; k < size; k++)
        for (size_t i = k + 1; i < size; i++) {
            double scale = a[i * size + k] /= a[k * size + k];
            for (size_t j = k + 1; j < size; j++)
                a[i * size + j] -= scale * a[k * size + j];
        }
}

/* For blocks below the diagonal block: a becomes a U^-1. */
static void divide_by_upper(double *a, const double *diagonal) {
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < size; k++) {
            double scale = a[i * size + k] /= diagonal[k * size + k];
            for (size_t j = k + 1; j < size; j++)
                a[i * size + j] -= scale * diagonal[k * size + j];
        }
}

/* For blocks to the right of the diagonal block: a becomes L^-1 a. */
static void divide_by_lower(double *a, const double *diagonal) {
    for (size_t k = 0; k < size; k++)
        for (size_t i = k + 1; i < size; i++)
            for (size_t j = 0; j < size; j++)
                a[i * size + j] -= diagonal[i * size + k] * a[k * size + j];
}

static void subtract_product(double *a, const double *left, const double *above) {
    for (size_t i = 0; i < size; i++)
        for (size_t k = 0; k < size; k++)
            for (size_t j = 0; j < size; j++)
                a[i * size + j] -= left[i * size + k] * above[k * size + j];
}

static void factorise(void) {
    for (size_t i = 0; i < blocks; i++)
        for (size_t j = 0; j < blocks; j++)
            if (owned(i, j))
                memcpy(block(matrix, i, j), block(original, i, j), size * size * sizeof *matrix);
#pragma omp barrier
    for (size_t k = 0; k < blocks; k++) {
        double *diagonal = block(matrix, k, k);
        if (owned(k, k))
            factor(diagonal);
#pragma omp barrier
        for (size_t i = k + 1; i < blocks; i++) {
            if (owned(i, k))
                divide_by_upper(block(matrix, i, k), diagonal);
            if (owned(k, i))
                divide_by_lower(block(matrix, k, i), diagonal);
        }
#pragma omp barrier
        for (size_t i = k + 1; i < blocks; i++)
            for (size_t j = k + 1; j < blocks; j++)
                if (owned(i, j))
                    subtract_product(block(matrix, i, j), block(matrix, i, k), block(matrix, k, j));
#pragma omp barrier
    }
}

/* Norm of original x - L (U x), for a random x. */
static double residual(void) {
    double *x = allocate(n * sizeof *x), *ux = allocate(n * sizeof *ux), total = 0;
    for (size_t i = 0; i < n; i++)
        x[i] = unit(random_at(~i));
    for (size_t i = 0; i < n; i++) {
        ux[i] = 0;
        for (size_t j = i; j < n; j++)
            ux[i] += *element(matrix, i, j) * x[j];
    }
    for (size_t i = 0; i < n; i++) {
        double sum = -ux[i];
        for (size_t j = 0; j < n; j++)
            sum += *element(original, i, j) * x[j];
        for (size_t j = 0; j < i; j++)
            sum -= *element(matrix, i, j) * ux[j];
        total += fabs(sum);
    }
    free(x);
    free(ux);
    return total / n;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("SIZE, a multiple of BLOCK", 128, 2, 65536),
                                     NUMBER("BLOCK", 16, 1, 65536),
                                     NUMBER("ROUNDS", 50, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    n = parameters[0].value;
    size = parameters[1].value;
    if (n % size)
        usage(parameters, LENGTH(parameters));
    blocks = n / size;
    size_t bytes = n * n * sizeof *matrix;
    matrix = allocate(bytes);
    original = allocate(bytes);
    double began = omp_get_wtime();
    fill();
    memset(matrix, 0, bytes);

    double built = omp_get_wtime(), checksum = 0;
#pragma omp parallel
    for (size_t round = 0; round < parameters[2].value; round++)
        factorise();
    double computed = omp_get_wtime();
    for (size_t i = 0; i < n; i++)
        checksum += *element(matrix, i, i) + *element(matrix, i, n - 1 - i);
    print_result(checksum, built - began, computed - built);
    double off = residual();
    REQUIRE(off < 1e-12 * n * n, "L U is off by %g", off);

    struct object objects[] = {{"matrix", matrix, bytes}, {"original", original, bytes}};
    PAUSE(objects);
}
