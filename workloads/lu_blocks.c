/* lu_blocks [CVAR_MIB [CVAR_PERIOD_MIB [CJAC_MIB [CJAC_PERIOD_MIB [ITERATIONS]]]]]
 *
 * All threads sweep over two static arrays, as over NPB LU's cvar and cjac in the NumaMMA paper.
 *
 * Access pattern, by construction, with T threads:
 *   cvar   block-cyclic: of every period (16 MiB), thread k reads and writes share k of T
 *   cjac   block-cyclic: likewise, with a period of its own (2 MiB)
 * So blocks have the size period / T. The master initialises everything. The arrays have their
 * maximal size, of which only the first CVAR_MIB and CJAC_MIB are ever touched. */
#include "workload.h"

#define CVAR_MIB_MAX 160
#define CJAC_MIB_MAX 20

/* On a page boundary, as Fortran common blocks of this size would be in practice, so that
 * blocks of whole pages begin at page boundaries. */
_Alignas(4096) double cvar[CVAR_MIB_MAX * MIB / sizeof(double)];
_Alignas(4096) double cjac[CJAC_MIB_MAX * MIB / sizeof(double)];

/* Calls `work` on the calling thread's share of every period. */
static inline double sweep(double *array, size_t count, size_t period,
                           double (*work)(double *, size_t)) {
    int k = omp_get_thread_num(), team = omp_get_num_threads();
    double sum = 0;
    for (size_t start = 0; start < count; start += period) {
        size_t length = count - start < period ? count - start : period;
        size_t first = share_begin(length, k, team);
        sum += work(array + start + first, share_begin(length, k + 1, team) - first);
    }
    return sum;
}

static double relax(double *elements, size_t count) {
    for (size_t i = 0; i < count; i++)
        elements[i] = elements[i] * 0.5 + 1.0;
    return 0;
}

static double add_up(double *elements, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += elements[i];
    return sum;
}

int main(int argc, char **argv) {
    double cvar_mib = argument(argc, argv, 1, CVAR_MIB_MAX);
    size_t cvar_period = argument(argc, argv, 2, 16) * MIB / sizeof(double);
    double cjac_mib = argument(argc, argv, 3, CJAC_MIB_MAX);
    size_t cjac_period = argument(argc, argv, 4, 2) * MIB / sizeof(double);
    int iterations = argument(argc, argv, 5, 50);
    if (cvar_mib > CVAR_MIB_MAX || cjac_mib > CJAC_MIB_MAX)
        die("at most 160 MiB of cvar and 20 MiB of cjac");
    if (!cvar_period || !cjac_period)
        die("a period holds at least one element");
    size_t cvar_count = cvar_mib * MIB / sizeof *cvar, cjac_count = cjac_mib * MIB / sizeof *cjac;

    for (size_t i = 0; i < cvar_count; i++)
        cvar[i] = i % 7;
    for (size_t i = 0; i < cjac_count; i++)
        cjac[i] = i % 5;

    double began = omp_get_wtime(), checksum = 0;
#pragma omp parallel
    {
        for (int iteration = 0; iteration < iterations; iteration++) {
            sweep(cvar, cvar_count, cvar_period, relax);
            sweep(cjac, cjac_count, cjac_period, relax);
#pragma omp barrier
        }
        double sum = team_sum(sweep(cvar, cvar_count, cvar_period, add_up) +
                              sweep(cjac, cjac_count, cjac_period, add_up));
#pragma omp master
        checksum = sum;
    }
    double seconds = omp_get_wtime() - began;
    printf("lu_blocks checksum %.12g compute %.3f s\n", checksum, seconds);

    struct object objects[] = {{"cvar", cvar, cvar_count * sizeof *cvar},
                               {"cjac", cjac, cjac_count * sizeof *cjac}};
    PAUSE(objects);
}
