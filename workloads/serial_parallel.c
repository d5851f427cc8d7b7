/* serial_parallel [SERIAL [PARALLEL [MARK]]]: the master works alone for SERIAL milliseconds of processor
 * time, then each thread of the team for PARALLEL; with a third argument, nearpage_begin() is in between.
 *
 * Access pattern, by construction, with T threads:
 *   table    the master alone reads and writes all of it at random; then thread k uses share k
 *            of T
 * Work is measured in processor time, so that a busy machine only makes the run longer. Prints the
 * processor time of the process. */
#include "workload.h"
#include "nearpage.h"
#include <time.h>

static double processor_ms(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static uint64_t work(uint64_t *table, size_t first, size_t end, double ms) {
    double until = processor_ms(CLOCK_THREAD_CPUTIME_ID) + ms;
    uint64_t state = first + 1, sum = 0;
    while (processor_ms(CLOCK_THREAD_CPUTIME_ID) < until)
        for (int i = 0; i < 20000; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += table[first + (state >> 33) % (end - first)]++;
        }
    return sum;
}

int main(int argc, char **argv) {
    double serial = argument(argc, argv, 1, 500), parallel = argument(argc, argv, 2, 500);
    size_t bytes = 32 * MIB, count = bytes / sizeof(uint64_t);
    uint64_t *table = calloc(count, sizeof *table);
    if (!table)
        die("out of memory");

    uint64_t sum = work(table, 0, count, serial);
    if (argc > 3)
        nearpage_begin();
#pragma omp parallel reduction(+ : sum)
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        sum += work(table, share_begin(count, k, team), share_begin(count, k + 1, team), parallel);
    }
    printf("serial_parallel checksum %llu processor %.1f ms\n", (unsigned long long)sum,
           processor_ms(CLOCK_PROCESS_CPUTIME_ID));

    struct object objects[] = {{"table", table, bytes}};
    PAUSE(objects);
}
