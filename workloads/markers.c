/* markers [MIB [ITERATIONS]]: three phases; nearpage_begin() and nearpage_end() mark the middle
 * one as the stable phase.
 *
 * Access pattern, by construction, with T threads, each object in one phase only:
 *   before    the master alone, before nearpage_begin()
 *   steady    block: thread k reads and writes share k of T, between the two calls
 *   after     the master alone, after nearpage_end()
 * The team touches `steady` first, within the marked phase. */
#include "workload.h"
#include "nearpage.h"

static double sweep(double *array, size_t first, size_t end, int iterations) {
    double sum = 0;
    for (int iteration = 0; iteration < iterations; iteration++)
        for (size_t i = first; i < end; i++) {
            array[i] = array[i] * 0.5 + 1.0;
            sum += array[i];
        }
    return sum;
}

int main(int argc, char **argv) {
    size_t bytes = argument(argc, argv, 1, 64) * MIB, count = bytes / sizeof(double);
    int iterations = argument(argc, argv, 2, 50);
    double *before = calloc(count, sizeof *before);
    double *steady = calloc(count, sizeof *steady);
    double *after = calloc(count, sizeof *after);
    if (!before || !steady || !after)
        die("out of memory");

    double began = omp_get_wtime(), middle = 0;
    double first_sum = sweep(before, 0, count, iterations);
    nearpage_begin();
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        double mine = sweep(steady, share_begin(count, k, team), share_begin(count, k + 1, team),
                            iterations);
        double sum = team_sum(mine);
#pragma omp master
        middle = sum;
    }
    nearpage_end();
    double last_sum = sweep(after, 0, count, iterations);
    printf("markers checksum %.12g compute %.3f s\n", first_sum + middle + last_sum,
           omp_get_wtime() - began);

    struct object objects[] = {
        {"before", before, bytes}, {"steady", steady, bytes}, {"after", after, bytes}};
    PAUSE(objects);
}
