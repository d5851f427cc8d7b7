/* triad [--gather] [--parallel-init] [MIB_PER_ARRAY [ITERATIONS]]: a = b + s * c.
 *
 * Access pattern, by construction, with T threads:
 *   a         block, stores: thread k writes share k of T
 *   b, c      block, loads
 *   table     only with --gather: shared, read at random by all threads
 * The master initialises everything, or with --parallel-init each thread its share
 * (table is the master's always). */
#include "workload.h"

static size_t count;
static double *a, *b, *c, *table;

static void initialise(size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        a[i] = 0;
        b[i] = i % 5;
        c[i] = i % 3;
    }
}

static void triad(size_t first, size_t end, double scale) {
    for (size_t i = first; i < end; i++)
        a[i] = b[i] + scale * c[i];
}

static void triad_gather(size_t first, size_t end, double scale, uint64_t *seed) {
    uint64_t state = *seed;
    for (size_t i = first; i < end; i++)
        a[i] = b[i] + scale * c[i] + table[random_below(&state, count)];
    *seed = state;
}

int main(int argc, char **argv) {
    int gather = flag(&argc, argv, "--gather");
    int parallel_init = flag(&argc, argv, "--parallel-init");
    size_t bytes = argument(argc, argv, 1, 256) * MIB;
    int iterations = argument(argc, argv, 2, 20);
    count = bytes / sizeof *a;

    a = allocate(bytes);
    b = allocate(bytes);
    c = allocate(bytes);
    if (!parallel_init)
        initialise(0, count);
    if (gather) {
        table = allocate(bytes);
        for (size_t i = 0; i < count; i++)
            table[i] = i % 11;
    }

    double began = 0, ended = 0, checksum = 0;
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        size_t first = share_begin(count, k, team), end = share_begin(count, k + 1, team);
        uint64_t seed = random_seed(k);
        if (parallel_init)
            initialise(first, end);
#pragma omp barrier
#pragma omp master
        began = omp_get_wtime();
        for (long round = 0; has_round(round); round++) {
            for (int iteration = 0; iteration < iterations; iteration++) {
                if (gather)
                    triad_gather(first, end, iteration, &seed);
                else
                    triad(first, end, iteration);
#pragma omp barrier
            }
#pragma omp master
            round_ended(round);
        }
#pragma omp master
        ended = omp_get_wtime();
        double mine = 0;
        for (size_t i = first; i < end; i++)
            mine += a[i];
        double sum = team_sum(mine);
#pragma omp master
        checksum = sum;
    }
    printf("triad checksum %.12g compute %.3f s\n", checksum, ended - began);

    struct object objects[] = {
        {"a", a, bytes}, {"b", b, bytes}, {"c", c, bytes}, {"table", table, table ? bytes : 0}};
    PAUSE(objects);
}
