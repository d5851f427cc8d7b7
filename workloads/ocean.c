/* ocean: currents in a basin driven by wind, with the nearest-neighbour pattern of SPLASH's Ocean.
 *
 * Access pattern, by construction, with T threads:
 *   stream, vorticity_0, vorticity_1   block: thread k reads and writes share k of T of the inner
 *                                      rows, and reads one row of each neighbour
 *   wind                               block, read only
 * The master initialises everything, or with --parallel-init each thread its rows. */
#include "ocean.h"

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("SIDE", 258, 4, 100000),
                                     NUMBER("STEPS", 100, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    size_t steps = parameters[2].value;
    double began = omp_get_wtime();
    ocean_build(parameters[1].value, parameters[0].value);
    double built = omp_get_wtime();
#pragma omp parallel
    for (size_t step = 0; step < steps; step++)
        for (size_t stage = 0; stage < OCEAN_STAGES; stage++) {
            ocean_stage(step, stage, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
        }
    print_result(ocean_checksum(), built - began, omp_get_wtime() - built);
    ocean_check(steps);

    struct object objects[] = {OCEAN_OBJECTS};
    PAUSE(objects);
}
