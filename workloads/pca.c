/* pca: the covariance of every pair of rows of a dense matrix and its principal component, as
 * Metis's PCA computes it.
 *
 * Access pattern, by construction, with T threads:
 *   matrix      shared: each thread reads the row it has and all rows after it; never written
 *               after the start
 *   means       block: thread k writes share k of T; read by all
 *   covariance  cyclic: thread k writes rows k, k + T, k + 2 T, … from the diagonal on, and at
 *               last the mirror image of its share below it, reading all; then, for the
 *               principal component, read in blocks of rows
 *   component   shared: read by all, written in blocks, small
 * The master initialises everything. */
#include "workload.h"
#include <math.h>

static size_t rows, columns;
static double *matrix, *means, *covariance, *component, *product;

/* One component that all rows have, each in its own measure, and as much noise. */
static double planted(size_t row) { return cos(3.0 * row / rows) + 0.1 * (row % 7); }

static void fill(void) {
    for (size_t column = 0; column < columns; column++)
        for (size_t row = 0; row < rows; row++)
            matrix[row * columns + column] =
                row + planted(row) * 4 * (unit(random_at(column)) - 0.5) +
                (unit(random_at(~(row * columns + column))) - 0.5);
}

static void average(void) {
    struct share mine = my_share(rows);
    for (size_t row = mine.first; row < mine.end; row++) {
        double sum = 0;
        for (size_t column = 0; column < columns; column++)
            sum += matrix[row * columns + column];
        means[row] = sum / columns;
    }
#pragma omp barrier
}

static void covary(void) {
    for (size_t i = omp_get_thread_num(); i < rows; i += omp_get_num_threads())
        for (size_t j = i; j < rows; j++) {
            const double *a = matrix + i * columns, *b = matrix + j * columns;
            double sum = 0;
            for (size_t column = 0; column < columns; column++)
                sum += (a[column] - means[i]) * (b[column] - means[j]);
            covariance[i * rows + j] = sum / (columns - 1);
        }
#pragma omp barrier
    struct share mine = my_share(rows);
    for (size_t i = mine.first; i < mine.end; i++)
        for (size_t j = 0; j < i; j++)
            covariance[i * rows + j] = covariance[j * rows + i];
#pragma omp barrier
}

/* Multiplies `component` by the covariance, makes it of length 1, and returns how long it was. */
static double iterate(void) {
    struct share mine = my_share(rows);
    double squares = 0;
    for (size_t i = mine.first; i < mine.end; i++) {
        product[i] = 0;
        for (size_t j = 0; j < rows; j++)
            product[i] += covariance[i * rows + j] * component[j];
        squares += product[i] * product[i];
    }
    double length = sqrt(team_sum(squares));
    for (size_t i = mine.first; i < mine.end; i++)
        component[i] = product[i] / length;
#pragma omp barrier
    return length;
}

/* E[ab] - E[a]E[b], with the rows' numbers taken off first for the sake of its digits. */
static double naive(size_t i, size_t j) {
    double a = 0, b = 0, ab = 0;
    for (size_t column = 0; column < columns; column++) {
        double x = matrix[i * columns + column] - i, y = matrix[j * columns + column] - j;
        a += x;
        b += y;
        ab += x * y;
    }
    return (ab - a * b / columns) / (columns - 1);
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("ROWS", 500, 2, 100000),
                                     NUMBER("COLUMNS", 1000, 16, 10000000)};
    READ_PARAMETERS(parameters);
    rows = parameters[0].value;
    columns = parameters[1].value;
    matrix = allocate(rows * columns * sizeof *matrix);
    means = allocate(rows * sizeof *means);
    covariance = allocate(rows * rows * sizeof *covariance);
    component = allocate(rows * sizeof *component);
    product = allocate(rows * sizeof *product);
    double began = omp_get_wtime(), variance = 0, checksum = 0;
    fill();
    memset(covariance, 0, rows * rows * sizeof *covariance);
    for (size_t i = 0; i < rows; i++) {
        means[i] = product[i] = 0;
        component[i] = 1 / sqrt(rows);
    }

    double built = omp_get_wtime();
#pragma omp parallel
    {
        average();
        covary();
        double length = 0;
        for (int iteration = 0; iteration < 50; iteration++)
            length = iterate();
#pragma omp master
        variance = length;
    }
    double computed = omp_get_wtime();
    for (size_t i = 0; i < rows * rows; i++)
        checksum += covariance[i];
    print_result(checksum + variance, built - began, computed - built);

    for (size_t sample = 0; sample < 50; sample++) {
        size_t i = random_at(2 * sample) % rows, j = random_at(2 * sample + 1) % rows;
        double expected = naive(i, j);
        REQUIRE(fabs(covariance[i * rows + j] - expected) < 1e-9 * (1 + fabs(expected)),
                "the covariance of rows %zu and %zu is not %g", i, j, expected);
    }
    double aligned = 0, length = 0, trace = 0;
    for (size_t i = 0; i < rows; i++) {
        aligned += planted(i) * component[i];
        length += planted(i) * planted(i);
        trace += covariance[i * rows + i];
    }
    REQUIRE(variance > 0 && variance <= trace, "a component of %g in a variance of %g", variance,
            trace);
    REQUIRE(fabs(aligned) / sqrt(length) > 0.9, "the planted component was not found: %g",
            fabs(aligned) / sqrt(length));

    struct object objects[] = {{"matrix", matrix, rows * columns * sizeof *matrix},
                               {"means", means, rows * sizeof *means},
                               {"covariance", covariance, rows * rows * sizeof *covariance},
                               {"component", component, rows * sizeof *component}};
    PAUSE(objects);
}
