/* nas_lu: five coupled unknowns on a cube, solved by symmetric successive over-relaxation, in the
 * manner of NPB LU and with the anomaly of Marathe's section 7: in the large static array rsd the
 * thread that touches a page most often is not the one that misses on it most often.
 *
 * Access pattern, by construction, with T threads; arrays are static, [z][y][x][5]:
 *   u, frct   block: thread k works on share k of T of the inner planes (z)
 *   rsd       twofold. By planes, seven passes, 11 accesses to each element, too long for a
 *             cache: each pass misses. By rows (y), share k of T of every plane, the two
 *             triangular sweeps: each solves a 5 x 5 system for every cell in place, together 37
 *             accesses to each element, of which two at most miss
 * So a page's accesses suggest its row's thread, and its misses its plane's thread, as long as T
 * shares of rsd (40 SIDE^3 bytes) are larger than the caches. The counts are valgrind's, for this
 * compiler at -O2 (misses: SIDE 40, half a MiB of cache). The arrays have their maximal size, of
 * which only the first SIDE^3 cells are ever touched.
 * The master initialises everything, or with --parallel-init each thread its planes. */
#include "workload.h"
#include <math.h>

#define SIDE_MAX 162
#define OMEGA 1.2

_Alignas(4096) double u[SIDE_MAX * SIDE_MAX * SIDE_MAX * 5];
_Alignas(4096) double rsd[SIDE_MAX * SIDE_MAX * SIDE_MAX * 5];
_Alignas(4096) double frct[SIDE_MAX * SIDE_MAX * SIDE_MAX * 5];

static size_t n;
/* The diagonal block, 6 + C, in its triangular factors. */
static double factors[5][5];

static double coupling(int row, int column) {
    return row == column ? 0.1 : -0.01 / (1 + abs(row - column));
}

static void factor(void) {
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++)
            factors[i][j] = coupling(i, j) + (i == j ? 6 : 0);
    for (int k = 0; k < 5; k++)
        for (int i = k + 1; i < 5; i++) {
            factors[i][k] /= factors[k][k];
            for (int j = k + 1; j < 5; j++)
                factors[i][j] -= factors[i][k] * factors[k][j];
        }
}

static inline size_t cell(size_t z, size_t y, size_t x) { return ((z * n + y) * n + x) * 5; }

static double solution(size_t at_z, size_t at_y, size_t at_x, int c) {
    double scale = 1.0 / n, x = scale * at_x, y = scale * at_y, z = scale * at_z;
    return (1 + x * x + c * y) * (2 - y * y * z) + z * z * z * x;
}

static int inside(size_t z, size_t y, size_t x) {
    return x && y && z && x < n - 1 && y < n - 1 && z < n - 1;
}

/* Computes frct from solution(); u is the solution on the boundary and 1 inside. */
static void fill(size_t first, size_t end) {
    for (size_t z = first; z < end; z++)
        for (size_t y = 0; y < n; y++)
            for (size_t x = 0; x < n; x++)
                for (int c = 0; c < 5; c++) {
                    size_t i = cell(z, y, x) + c;
                    u[i] = inside(z, y, x) ? 1 : solution(z, y, x, c);
                    rsd[i] = frct[i] = 0;
                    if (!inside(z, y, x))
                        continue;
                    frct[i] = 6 * solution(z, y, x, c);
                    for (int side = -1; side <= 1; side += 2)
                        frct[i] -= solution(z + side, y, x, c) + solution(z, y + side, x, c) +
                                   solution(z, y, x + side, c);
                    for (int d = 0; d < 5; d++)
                        frct[i] += coupling(c, d) * solution(z, y, x, d);
                }
}

/* Calls `work` on every inner cell of the calling thread's planes. */
#define PASS(statement)                                                                            \
    for (size_t z = planes.first + 1; z < planes.end + 1; z++)                                     \
        for (size_t y = 1; y < n - 1; y++)                                                         \
            for (size_t i = cell(z, y, 1); i < cell(z, y, n - 1); i++)                             \
    statement

/* rsd = frct - A u: one pass for each direction and one for the coupling, as NPB has it. Returns
 * the calling thread's part of the squared norm. */
static double residual(void) {
    struct share planes = my_share(n - 2);
    double squares = 0;
    PASS(rsd[i] = frct[i] - 6 * u[i]);
    for (size_t z = planes.first + 1; z < planes.end + 1; z++)
        for (size_t y = 1; y < n - 1; y++)
            for (size_t i = cell(z, y, 1); i < cell(z, y, n - 1); i += 5)
                for (int c = 0; c < 5; c++) {
                    double sum = 0;
                    for (int d = 0; d < 5; d++)
                        sum += coupling(c, d) * u[i + d];
                    rsd[i + c] -= sum;
                }
    PASS(rsd[i] += u[i - 5] + u[i + 5]);
    PASS(rsd[i] += u[i - 5 * n] + u[i + 5 * n]);
    PASS(rsd[i] += u[i - 5 * n * n] + u[i + 5 * n * n]);
    PASS(squares += rsd[i] * rsd[i]);
#pragma omp barrier
    return squares;
}

/* Updates one cell of a sweep in place, by the neighbours that are already updated (those before the
 * cell in the lower sweep, direction 1; those after it in the upper one, -1) and the diagonal block. */
static inline void relax(size_t i, int64_t direction) {
    size_t x = i - direction * 5, y = i - direction * 5 * (int64_t)n;
    size_t z = i - direction * 5 * (int64_t)(n * n);
    double kept[5];
    for (int c = 0; c < 5; c++) {
        kept[c] = direction > 0 ? 0 : rsd[i + c];
        rsd[i + c] = (direction > 0 ? rsd[i + c] : 0) +
                     OMEGA * (rsd[x + c] + rsd[y + c] + rsd[z + c]);
    }
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < a; b++)
            rsd[i + a] -= factors[a][b] * rsd[i + b];
    for (int a = 4; a >= 0; a--) {
        for (int b = a + 1; b < 5; b++)
            rsd[i + a] -= factors[a][b] * rsd[i + b];
        rsd[i + a] /= factors[a][a];
    }
    for (int c = 0; c < 5; c++)
        rsd[i + c] += kept[c];
}

/* Thread k is k steps behind the first thread, so that the neighbour's rows on its plane are done. */
static void sweep(int64_t direction) {
    struct share rows = my_share(n - 2);
    size_t team = omp_get_num_threads(), late = omp_get_thread_num(), inner = n - 2;
    if (direction < 0)
        late = team - 1 - late;
    for (size_t turn = 0; turn < inner + team - 1; turn++) {
        size_t plane = turn - late;
        for (size_t j = rows.first; j < rows.end && turn >= late && plane < inner; j++)
            for (size_t k = 0; k < inner; k++) {
                size_t y = direction > 0 ? j : rows.end - 1 - (j - rows.first);
                size_t x = direction > 0 ? k : inner - 1 - k;
                size_t z = direction > 0 ? plane : inner - 1 - plane;
                relax(cell(z + 1, y + 1, x + 1), direction);
            }
#pragma omp barrier
    }
}

static double iterate(void) {
    struct share planes = my_share(n - 2);
    double squares = residual();
    sweep(1);
    sweep(-1);
    PASS(u[i] += OMEGA * (2 - OMEGA) * rsd[i]);
#pragma omp barrier
    return squares;
}

static double largest_error(void) {
    double worst = 0;
    for (size_t i = 0; i < n * n * n; i++)
        for (int c = 0; c < 5; c++)
            worst =
                fmax(worst, fabs(u[i * 5 + c] - solution(i / n / n, i / n % n, i % n, c)));
    return worst;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("SIDE", 64, 4, SIDE_MAX),
                                     NUMBER("ITERATIONS", 10, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    n = parameters[1].value;
    size_t iterations = parameters[2].value;
    double began = omp_get_wtime(), first = 0, last = 0, checksum = 0;
    factor();
    fill_shares(parameters[0].value, n, fill);
    double built = omp_get_wtime(), error = largest_error(), start = omp_get_wtime();
#pragma omp parallel
    for (size_t iteration = 0; iteration < iterations; iteration++) {
        double norm = sqrt(team_sum(iterate()));
#pragma omp master
        {
            if (!iteration)
                first = norm;
            last = norm;
        }
    }
    double computed = omp_get_wtime(), error_after = largest_error();
    for (size_t i = 0; i < 5 * n * n * n; i++)
        checksum += u[i];
    print_result(checksum, built - began, computed - start);
    REQUIRE(iterations == 1 || last < first * pow(0.97, iterations - 1) || last < 1e-9 * n * n,
            "residual %g became %g", first, last);
    REQUIRE(error_after < fmax(error * pow(0.97, iterations), 1e-10 * n), "error %g became %g",
            error, error_after);

    size_t bytes = 5 * n * n * n * sizeof(double);
    struct object objects[] = {{"u", u, bytes}, {"rsd", rsd, bytes}, {"frct", frct, bytes}};
    PAUSE(objects);
}
