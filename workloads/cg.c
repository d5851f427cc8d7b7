/* cg [ROWS [NONZEROS_PER_ROW [ITERATIONS]]]: conjugate gradient on a sparse matrix.
 *
 * Access pattern, by construction, with T threads:
 *   values, columns, row_start, x, r, q   block: thread k reads and writes share k of T
 *   p                                     shared: gathered at random by all threads;
 *                                         updated in blocks
 * The master initialises everything, so first touch puts every page on its node.
 *
 * The matrix is symmetric and positive definite: each off-diagonal entry comes from a
 * random pairing of all rows, and the diagonal outweighs them. */
#include "workload.h"

static size_t rows, row_length;
static double *values;
static uint32_t *columns;
static uint64_t *row_start;
static double *x, *r, *q, *p;

static void pair_rows(size_t slot, uint32_t *shuffled, uint64_t *seed) {
    for (size_t i = rows - 1; i > 0; i--) {
        size_t j = random_below(seed, i + 1);
        uint32_t other = shuffled[i];
        shuffled[i] = shuffled[j];
        shuffled[j] = other;
    }
    for (size_t i = 0; i + 1 < rows; i += 2) {
        uint32_t a = shuffled[i], b = shuffled[i + 1];
        double value = -(double)(random_next(seed) >> 11) / (1ull << 53);
        columns[a * row_length + slot] = b;
        columns[b * row_length + slot] = a;
        values[a * row_length + slot] = value;
        values[b * row_length + slot] = value;
    }
}

static void build(void) {
    uint64_t seed = random_seed(0);
    uint32_t *shuffled = allocate(rows * sizeof *shuffled);
    for (size_t i = 0; i < rows; i++) {
        shuffled[i] = i;
        row_start[i] = i * row_length;
        columns[i * row_length] = i;
        values[i * row_length] = row_length;
        x[i] = r[i] = q[i] = p[i] = 0;
    }
    row_start[rows] = rows * row_length;
    for (size_t slot = 1; slot < row_length; slot++)
        pair_rows(slot, shuffled, &seed);
    free(shuffled);
}

static double right_hand_side(size_t i) { return 1.0 + i % 7; }

/* Runs in every thread of the team on its share of the rows. */
static double solve(int iterations) {
    size_t first = share_begin(rows, omp_get_thread_num(), omp_get_num_threads());
    size_t end = share_begin(rows, omp_get_thread_num() + 1, omp_get_num_threads());
    double rr = 0;
    for (int iteration = 0; iteration < iterations; iteration++) {
        /* Start afresh before the residual runs out of bits, as NPB CG does. */
        if (iteration % 25 == 0 || rr == 0) {
            double mine = 0;
            for (size_t i = first; i < end; i++) {
                x[i] = 0;
                r[i] = p[i] = right_hand_side(i);
                mine += r[i] * r[i];
            }
            rr = team_sum(mine);
        }
        double mine = 0;
        for (size_t i = first; i < end; i++) {
            double sum = 0;
            for (uint64_t k = row_start[i]; k < row_start[i + 1]; k++)
                sum += values[k] * p[columns[k]];
            q[i] = sum;
            mine += p[i] * sum;
        }
        double alpha = rr / team_sum(mine);
        mine = 0;
        for (size_t i = first; i < end; i++) {
            x[i] += alpha * p[i];
            r[i] -= alpha * q[i];
            mine += r[i] * r[i];
        }
        double rr_next = team_sum(mine);
        double beta = rr_next / rr;
        rr = rr_next;
        for (size_t i = first; i < end; i++)
            p[i] = r[i] + beta * p[i];
#pragma omp barrier
    }
    double mine = 0;
    for (size_t i = first; i < end; i++)
        mine += x[i];
    return team_sum(mine);
}

int main(int argc, char **argv) {
    /* An even number of rows, so that every row finds a partner. */
    rows = ((size_t)argument(argc, argv, 1, 1000000) + 1) & ~(size_t)1;
    row_length = argument(argc, argv, 2, 16);
    int iterations = argument(argc, argv, 3, 50);
    if (rows > UINT32_MAX || row_length < 1)
        die("at most 2^32 rows, at least one nonzero per row");

    values = allocate(rows * row_length * sizeof *values);
    columns = allocate(rows * row_length * sizeof *columns);
    row_start = allocate((rows + 1) * sizeof *row_start);
    x = allocate(rows * sizeof *x);
    r = allocate(rows * sizeof *r);
    q = allocate(rows * sizeof *q);
    p = allocate(rows * sizeof *p);
    double began = omp_get_wtime();
    build();
    double built = omp_get_wtime();
    double checksum = 0;
#pragma omp parallel
    {
        double sum = solve(iterations);
#pragma omp master
        checksum = sum;
    }
    printf("cg checksum %.12g init %.3f s compute %.3f s\n", checksum, built - began,
           omp_get_wtime() - built);

    struct object objects[] = {
        {"values", values, rows * row_length * sizeof *values},
        {"columns", columns, rows * row_length * sizeof *columns},
        {"row_start", row_start, (rows + 1) * sizeof *row_start},
        {"x", x, rows * sizeof *x},
        {"r", r, rows * sizeof *r},
        {"q", q, rows * sizeof *q},
        {"p", p, rows * sizeof *p},
    };
    PAUSE(objects);
}
