/* stages [KIB [FORWARD [BACKWARD]]]: sweeps over an array, FORWARD times with share k for thread k, then BACKWARD
 * times with share T - 1 - k.
 *
 * Access pattern, by construction, with T threads:
 *   grid      block, loads and stores: thread k has share k while `forward` runs, share T - 1 - k from when
 *             `backward` begins; the master fills it before and adds it up after
 * No placement suits both stages, unless T is 1. */
#include "workload.h"

static size_t count;
static double *grid;

static void sweep(size_t first, size_t end) {
    for (size_t i = first; i < end; i++)
        grid[i] = grid[i] * 0.5 + 1;
}

static void forward(int passes) {
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        for (int pass = 0; pass < passes; pass++) {
            sweep(share_begin(count, k, team), share_begin(count, k + 1, team));
#pragma omp barrier
        }
    }
}

static void backward(int passes) {
#pragma omp parallel
    {
        int team = omp_get_num_threads(), k = team - 1 - omp_get_thread_num();
        for (int pass = 0; pass < passes; pass++) {
            sweep(share_begin(count, k, team), share_begin(count, k + 1, team));
#pragma omp barrier
        }
    }
}

int main(int argc, char **argv) {
    size_t bytes = argument(argc, argv, 1, 1024) * 1024;
    int forwards = argument(argc, argv, 2, 20);
    int backwards = argument(argc, argv, 3, 20);
    count = bytes / sizeof *grid;
    grid = allocate(bytes);
    for (size_t i = 0; i < count; i++)
        grid[i] = i % 7;
    forward(forwards);
    backward(backwards);
    struct object objects[] = {{"grid", grid, bytes}};
    PAUSE(objects);
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += grid[i];
    printf("%.6g\n", sum);
    return 0;
}
