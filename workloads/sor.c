/* sor: successive over-relaxation, red and black, of Laplace's equation on a square grid.
 *
 * Access pattern, by construction, with T threads:
 *   grid   block: thread k reads and writes share k of T of the inner rows, and reads one row of
 *          each neighbour
 * The master initialises everything, or with --parallel-init each thread its rows. */
#include "workload.h"
#include <math.h>

static size_t side; /* with its boundary */
static double *grid;

/* The solution for the given boundary: harmonic, also exactly so in finite differences. */
static double solution(size_t i, size_t j) {
    double x = (double)i / (side - 1), y = (double)j / (side - 1);
    return x * x - y * y + x * y;
}

static int on_boundary(size_t i, size_t j) {
    return i == 0 || j == 0 || i == side - 1 || j == side - 1;
}

static void fill(size_t first, size_t end) {
    for (size_t i = first; i < end; i++)
        for (size_t j = 0; j < side; j++)
            grid[i * side + j] = on_boundary(i, j) ? solution(i, j) : 0;
}

static double difference(const double *at) {
    return 0.25 * (at[-1] + at[1] + at[-(int64_t)side] + at[side]) - *at;
}

static void relax(struct share rows, size_t colour, double omega) {
    for (size_t i = rows.first + 1; i < rows.end + 1; i++)
        for (size_t j = 1 + (i + colour) % 2; j < side - 1; j += 2)
            grid[i * side + j] += omega * difference(&grid[i * side + j]);
#pragma omp barrier
}

/* The largest residual, and the largest distance from the solution. */
static void distances(double *residual, double *error) {
    *residual = *error = 0;
    for (size_t i = 1; i < side - 1; i++)
        for (size_t j = 1; j < side - 1; j++) {
            *residual = fmax(*residual, fabs(difference(&grid[i * side + j])));
            *error = fmax(*error, fabs(grid[i * side + j] - solution(i, j)));
        }
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("SIDE", 200, 1, 1000000),
                                     NUMBER("ITERATIONS", 2000, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    side = parameters[1].value + 2;
    size_t iterations = parameters[2].value, bytes = side * side * sizeof *grid;
    grid = allocate(bytes);
    double began = omp_get_wtime(), residual[2], error[2];
    fill_shares(parameters[0].value, side, fill);
    double built = omp_get_wtime();
    distances(&residual[0], &error[0]);

    double start = omp_get_wtime(), omega = 2 / (1 + sin(M_PI / (side - 1)));
#pragma omp parallel
    {
        struct share rows = my_share(side - 2);
        for (size_t iteration = 0; iteration < iterations; iteration++) {
            relax(rows, 0, omega);
            relax(rows, 1, omega);
        }
    }
    double computed = omp_get_wtime(), checksum = 0;
    distances(&residual[1], &error[1]);
    for (size_t i = 0; i < side * side; i++)
        checksum += grid[i];
    print_result(checksum, built - began, computed - start);
    REQUIRE(residual[1] < residual[0], "residual %g became %g", residual[0], residual[1]);
    /* In theory the error falls by a factor of exp(2 pi / side) per iteration; half of this is required. */
    double expected = error[0] * exp(-M_PI * iterations / (side - 1)) * iterations + 1e-11;
    REQUIRE(error[1] < fmax(expected, residual[1] * side * side), "error %g became %g, not %g",
            error[0], error[1], expected);

    struct object objects[] = {{"grid", grid, bytes}};
    PAUSE(objects);
}
