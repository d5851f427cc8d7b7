/* mg: V-cycles of multigrid for Poisson's equation in a periodic cube, in the manner of NPB MG
 * (its C version: every row of every level is an allocation of its own).
 *
 * Access pattern, by construction, with T threads; arrays are [z][y][x] at each level:
 *   u, f, r   block: thread k reads and writes share k of T of a level's planes (z), and reads
 *             the planes beside them; work on a coarse plane reads its three fine planes, and
 *             vice versa. Levels with fewer than T planes leave threads idle.
 * Rows are small allocations, in the order of level, plane and row, with u, f and r in turn. The
 * master initialises everything, or with --parallel-init each thread its planes (but the master
 * writes the allocator's headers between rows). */
#include "workload.h"
#include <math.h>

struct level {
    size_t n;
    double ***u, ***f, ***r;
};

static struct level levels[16];
static int finest;

static double ***planes(size_t n) {
    double ***table = allocate(n * sizeof *table);
    for (size_t z = 0; z < n; z++)
        table[z] = allocate(n * sizeof **table);
    return table;
}

static void build(int which) {
    struct level *l = &levels[which];
    size_t n = l->n = (size_t)2 << which;
    l->u = planes(n);
    l->f = planes(n);
    l->r = planes(n);
    for (size_t z = 0; z < n; z++)
        for (size_t y = 0; y < n; y++) {
            l->u[z][y] = allocate(n * sizeof(double));
            l->f[z][y] = allocate(n * sizeof(double));
            l->r[z][y] = allocate(n * sizeof(double));
        }
}

static void clear(double ***array, size_t n, size_t first, size_t end) {
    for (size_t z = first; z < end; z++)
        for (size_t y = 0; y < n; y++)
            memset(array[z][y], 0, n * sizeof(double));
}

/* `first` and `end` are planes of the finest level; coarse levels are divided in the same shares. */
static void fill(size_t first, size_t end) {
    for (int which = 0; which <= finest; which++) {
        struct level *l = &levels[which];
        size_t n = levels[finest].n, from = first * l->n / n, to = end * l->n / n;
        clear(l->u, l->n, from, to);
        clear(l->f, l->n, from, to);
        clear(l->r, l->n, from, to);
    }
}

/* Ten points of charge +1 and ten of -1. */
static void place_charges(double ***f, size_t n) {
    uint64_t seed = random_seed(3);
    for (int i = 0; i < 20; i++) {
        size_t z = random_below(&seed, n), y = random_below(&seed, n), x = random_below(&seed, n);
        f[z][y][x] += i % 2 ? -1 : 1;
    }
}

/* The sum of the six neighbours in the periodic cube. */
static inline double around(double ***u, size_t n, size_t z, size_t y, size_t x) {
    size_t mask = n - 1;
    return u[z][y][(x - 1) & mask] + u[z][y][(x + 1) & mask] + u[z][(y - 1) & mask][x] +
           u[z][(y + 1) & mask][x] + u[(z - 1) & mask][y][x] + u[(z + 1) & mask][y][x];
}

/* Gauss-Seidel: the red points, then the black points. */
static void smooth(struct level *l) {
    struct share mine = my_share(l->n);
    double square = 1.0 / (l->n * l->n);
    for (size_t colour = 0; colour < 2; colour++) {
        for (size_t z = mine.first; z < mine.end; z++)
            for (size_t y = 0; y < l->n; y++)
                for (size_t x = (z + y + colour) % 2; x < l->n; x += 2)
                    l->u[z][y][x] = (around(l->u, l->n, z, y, x) + square * l->f[z][y][x]) / 6;
#pragma omp barrier
    }
}

static void residual(struct level *l) {
    struct share mine = my_share(l->n);
    double scale = (double)l->n * l->n;
    for (size_t z = mine.first; z < mine.end; z++)
        for (size_t y = 0; y < l->n; y++)
            for (size_t x = 0; x < l->n; x++)
                l->r[z][y][x] = l->f[z][y][x] +
                                scale * (around(l->u, l->n, z, y, x) - 6 * l->u[z][y][x]);
#pragma omp barrier
}

/* The coarse right-hand side: the fine residual, weighted over 27 points. */
static void restrict_residual(const struct level *fine, struct level *coarse) {
    struct share mine = my_share(coarse->n);
    size_t mask = fine->n - 1;
    for (size_t z = mine.first; z < mine.end; z++)
        for (size_t y = 0; y < coarse->n; y++)
            for (size_t x = 0; x < coarse->n; x++) {
                double sum = 0;
                for (size_t near = 0; near < 27; near++) {
                    size_t dx = near % 3, dy = near / 3 % 3, dz = near / 9;
                    double weight = 0.125 * (dx == 1 ? 1 : 0.5) * (dy == 1 ? 1 : 0.5) *
                                    (dz == 1 ? 1 : 0.5);
                    sum += weight * fine->r[(2 * z + dz - 1) & mask][(2 * y + dy - 1) & mask]
                                           [(2 * x + dx - 1) & mask];
                }
                coarse->f[z][y][x] = sum;
                coarse->u[z][y][x] = 0;
            }
#pragma omp barrier
}

/* Adds the coarse solution to the fine one, linear between its points. */
static void interpolate(const struct level *coarse, struct level *fine) {
    struct share mine = my_share(fine->n);
    size_t mask = coarse->n - 1;
    for (size_t z = mine.first; z < mine.end; z++)
        for (size_t y = 0; y < fine->n; y++)
            for (size_t x = 0; x < fine->n; x++) {
                double sum = 0;
                for (size_t corner = 0; corner < 8; corner++) {
                    size_t cx = (x + (corner & 1)) / 2, cy = (y + (corner >> 1 & 1)) / 2;
                    size_t cz = (z + (corner >> 2)) / 2;
                    sum += coarse->u[cz & mask][cy & mask][cx & mask];
                }
                fine->u[z][y][x] += 0.125 * sum;
            }
#pragma omp barrier
}

static void cycle(void) {
    for (int which = finest; which > 0; which--) {
        smooth(&levels[which]);
        smooth(&levels[which]);
        residual(&levels[which]);
        restrict_residual(&levels[which], &levels[which - 1]);
    }
    for (int sweep = 0; sweep < 4; sweep++)
        smooth(&levels[0]);
    for (int which = 1; which <= finest; which++) {
        interpolate(&levels[which - 1], &levels[which]);
        smooth(&levels[which]);
        smooth(&levels[which]);
    }
}

static double norm(double ***array, size_t n) {
    struct share mine = my_share(n);
    double sum = 0;
    for (size_t z = mine.first; z < mine.end; z++)
        for (size_t y = 0; y < n; y++)
            for (size_t x = 0; x < n; x++)
                sum += array[z][y][x] * array[z][y][x];
    return sqrt(team_sum(sum));
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("LOG2_SIDE", 6, 2, 10),
                                     NUMBER("CYCLES", 8, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    finest = parameters[1].value - 1;
    double began = omp_get_wtime();
    for (int which = 0; which <= finest; which++)
        build(which);
    struct level *top = &levels[finest];
    fill_shares(parameters[0].value, top->n, fill);
    place_charges(top->f, top->n);

    double built = omp_get_wtime(), before = 0, after = 0, checksum = 0;
#pragma omp parallel
    {
        double first = norm(top->f, top->n);
        for (size_t c = 0; c < parameters[2].value; c++)
            cycle();
        residual(top);
        double last = norm(top->r, top->n), solution = norm(top->u, top->n);
#pragma omp master
        {
            before = first;
            after = last;
            checksum = solution;
        }
    }
    print_result(checksum, built - began, omp_get_wtime() - built);
    double expected = before * pow(0.3, parameters[2].value);
    REQUIRE(after <= fmax(expected, 1e-9 * before), "residual %g became %g, not %g", before, after,
            expected);

    /* Rows of the finest level represent the arrays, whose tables only have pointers to rows. */
    struct object objects[] = {{"u", top->u[0][0], top->n * sizeof(double)},
                               {"f", top->f[0][0], top->n * sizeof(double)},
                               {"r", top->r[0][0], top->n * sizeof(double)}};
    PAUSE(objects);
}
