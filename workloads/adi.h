/* Common part of sp and bt: five coupled unknowns on a cube, driven to their steady state by
 * alternating directions. The equations, in units of the grid,
 *
 *     du/dt = d2u/dx2 + d2u/dy2 + d2u/dz2 - C u + f        u given on the boundary
 *
 * have a known solution: f is computed from it. The including program defines C and solves the
 * implicit equations of one line of cells.
 *
 * Access pattern, by construction, with T threads; arrays are [z][y][x][5]:
 *   u         block: thread k updates share k of T of the inner planes (z), and reads the planes
 *   rhs       block: by planes too, except for the lines along z: of these lines thread k reads
 *             and writes share k by rows (y), so that the thread passes through every plane
 *   forcing   block: by planes, read only
 *   forcing   block: by planes, read only
 *   a line    private to each thread: on its stack
 * The master initialises everything, or with --parallel-init each thread its planes. */
#ifndef ADI_H
#define ADI_H

#include "workload.h"
#include <math.h>

#define SIDE_MAX 512
#define TIME_STEP 4.0

static size_t n;
static double *u, *rhs, *forcing;

/* Defined by the program: the coupling C, and a solver of the implicit equations along one line of
 * `length` unknowns with zeros beyond both ends, in place. */
static double coupling(int row, int column);
static void solve_line(double line[][5], size_t length);

static inline size_t cell(size_t z, size_t y, size_t x) { return ((z * n + y) * n + x) * 5; }

static double solution(size_t i, int c) {
    double scale = 1.0 / n, x = scale * (i / 5 % n);
    double y = scale * (i / 5 / n % n), z = scale * (i / 5 / n / n);
    return (1 + x * x + c * y) * (2 - y * y * z) + z * z * z * x;
}

static int inside(size_t i) {
    size_t x = i / 5 % n, y = i / 5 / n % n, z = i / 5 / n / n;
    return x && y && z && x < n - 1 && y < n - 1 && z < n - 1;
}

/* The right side of the equations without f, at cell i of `field`. */
static inline void operate(const double *field, size_t i, double *out) {
    size_t row = 5 * n, plane = 5 * n * n;
    for (int c = 0; c < 5; c++) {
        const double *at = field + i + c;
        out[c] = at[-5] + at[5] + at[-(int64_t)row] + at[row] + at[-(int64_t)plane] + at[plane] -
                 6 * *at;
        for (int d = 0; d < 5; d++)
            out[c] -= coupling(c, d) * field[i + d];
    }
}

static void fill_solution(size_t first, size_t end) {
    for (size_t i = cell(first, 0, 0); i < cell(end, 0, 0); i += 5)
        for (int c = 0; c < 5; c++) {
            u[i + c] = solution(i, c);
            rhs[i + c] = forcing[i + c] = 0;
        }
}

static void fill_forcing(size_t first, size_t end) {
    for (size_t i = cell(first, 0, 0); i < cell(end, 0, 0); i += 5)
        if (inside(i)) {
            operate(u, i, &forcing[i]);
            for (int c = 0; c < 5; c++)
                forcing[i + c] *= -1;
        }
}

static void fill_start(size_t first, size_t end) {
    for (size_t i = cell(first, 0, 0); i < cell(end, 0, 0); i += 5)
        for (int c = 0; c < 5 && inside(i); c++)
            u[i + c] = 1;
}

/* Solves one line of `rhs` from `start`, copied into the thread's own memory. */
static void solve_along(size_t start, size_t stride) {
    double line[SIDE_MAX][5];
    for (size_t i = 0; i < n - 2; i++)
        memcpy(line[i], &rhs[start + i * stride], sizeof line[i]);
    solve_line(line, n - 2);
    for (size_t i = 0; i < n - 2; i++)
        memcpy(&rhs[start + i * stride], line[i], sizeof line[i]);
}

/* One step of time; returns the calling thread's part of the squared residual. */
static double step(void) {
    struct share mine = my_share(n - 2);
    double squares = 0;
    for (size_t z = mine.first + 1; z < mine.end + 1; z++)
        for (size_t y = 1; y < n - 1; y++)
            for (size_t x = 1; x < n - 1; x++) {
                size_t i = cell(z, y, x);
                operate(u, i, &rhs[i]);
                for (int c = 0; c < 5; c++) {
                    rhs[i + c] += forcing[i + c];
                    squares += rhs[i + c] * rhs[i + c];
                    rhs[i + c] *= TIME_STEP;
                }
            }
    for (size_t z = mine.first + 1; z < mine.end + 1; z++) {
        for (size_t y = 1; y < n - 1; y++)
            solve_along(cell(z, y, 1), 5);
        for (size_t x = 1; x < n - 1; x++)
            solve_along(cell(z, 1, x), 5 * n);
    }
#pragma omp barrier
    for (size_t y = mine.first + 1; y < mine.end + 1; y++)
        for (size_t x = 1; x < n - 1; x++)
            solve_along(cell(1, y, x), 5 * n * n);
#pragma omp barrier
    for (size_t i = cell(mine.first + 1, 0, 0); i < cell(mine.end + 1, 0, 0); i += 5)
        for (int c = 0; c < 5 && inside(i); c++)
            u[i + c] += rhs[i + c];
#pragma omp barrier
    return squares;
}

static double largest_error(void) {
    double worst = 0;
    for (size_t i = 0; i < 5 * n * n * n; i++)
        worst = fmax(worst, fabs(u[i] - solution(i - i % 5, i % 5)));
    return worst;
}

/* main() of both programs. */
static void run(int argc, char **argv, size_t side) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("SIDE", side, 4, SIDE_MAX),
                                     NUMBER("ITERATIONS", 10, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    n = parameters[1].value;
    size_t iterations = parameters[2].value, bytes = 5 * n * n * n * sizeof *u;
    u = allocate(bytes);
    rhs = allocate(bytes);
    forcing = allocate(bytes);
    double began = omp_get_wtime(), first = 0, last = 0, checksum = 0;
    fill_shares(parameters[0].value, n, fill_solution);
    fill_shares(parameters[0].value, n, fill_forcing);
    fill_shares(parameters[0].value, n, fill_start);
    double built = omp_get_wtime(), error = largest_error(), start = omp_get_wtime();
#pragma omp parallel
    for (size_t iteration = 0; iteration < iterations; iteration++) {
        double residual = sqrt(team_sum(step()));
#pragma omp master
        {
            if (!iteration)
                first = residual;
            last = residual;
        }
    }
    double computed = omp_get_wtime(), error_after = largest_error();
    for (size_t i = 0; i < 5 * n * n * n; i++)
        checksum += u[i];
    print_result(checksum, built - began, computed - start);
    /* Even the slowest case converges by three per cent a step. */
    double least = pow(0.97, iterations - 1);
    REQUIRE(last <= fmax(first * least, 1e-10 * n * n), "residual %g became %g", first, last);
    REQUIRE(error_after < fmax(error * least, 1e-10 * n), "error %g became %g", error, error_after);

    struct object objects[] = {{"u", u, bytes}, {"rhs", rhs, bytes}, {"forcing", forcing, bytes}};
    PAUSE(objects);
}

#endif
