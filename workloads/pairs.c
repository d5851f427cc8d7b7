/* pairs [MIB_PER_PAIR [ITERATIONS]]: pairs of threads that share data.
 *
 * Access pattern, by construction, with T threads, an even number:
 *   block_K   shared: lines that only threads K and K + T/2 read, at random; never written after
 *             the master has filled it
 * With WORKLOAD_UNTIL the checksum stays the same. */
#include "workload.h"

/* Words of a cache line. */
#define LINE 8

static uint64_t line_sum(const uint64_t *words) {
    uint64_t sum = 0;
    for (int i = 0; i < LINE; i++)
        sum += words[i];
    return sum;
}

int main(int argc, char **argv) {
    size_t bytes = argument(argc, argv, 1, 64) * MIB, count = bytes / sizeof(uint64_t);
    int iterations = argument(argc, argv, 2, 100);
    int pairs = omp_get_max_threads() / 2;
    if (omp_get_max_threads() % 2)
        die("an even number of threads");
    uint64_t **blocks = allocate(pairs * sizeof *blocks);
    for (int pair = 0; pair < pairs; pair++) {
        uint64_t seed = random_seed(1000 + pair);
        blocks[pair] = allocate(bytes);
        for (size_t i = 0; i < count; i++)
            blocks[pair][i] = random_next(&seed);
    }

    double began = omp_get_wtime();
    uint64_t checksum = 0;
#pragma omp parallel reduction(+ : checksum)
    {
        int k = omp_get_thread_num();
        const uint64_t *block = blocks[k % pairs];
        for (long round = 0; has_round(round); round++) {
            uint64_t seed = random_seed(k), sum = 0;
            for (int iteration = 0; iteration < iterations; iteration++)
                for (size_t line = 0; line < count / LINE; line++)
                    sum += line_sum(&block[random_below(&seed, count / LINE) * LINE]);
            checksum = sum;
#pragma omp master
            round_ended(round);
        }
    }
    printf("pairs checksum %" PRIu64 " compute %.3f s\n", checksum, omp_get_wtime() - began);

    char names[pairs][32];
    struct object objects[pairs];
    for (int pair = 0; pair < pairs; pair++) {
        snprintf(names[pair], sizeof names[pair], "block_%d", pair);
        objects[pair] = (struct object){names[pair], blocks[pair], bytes};
    }
    PAUSE(objects);
}
