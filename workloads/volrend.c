/* volrend: renders a volume of densities from all sides by casting rays, with the access pattern of
 * SPLASH's Volrend.
 *
 * Access pattern, by construction, with T threads:
 *   densities, shades   shared: read by all wherever their rays go, never written after the master
 *                       has filled them; half of the volume is air, which is hardly read
 *   largest             shared: read by all at every sample, small
 *   pixels              tiles of 4 x 4 pixels, contiguous (64 bytes): thread k writes tiles k,
 *                       k + T, k + 2 T, …; the master reads all between frames
 * The master initialises everything. SPLASH's threads steal tiles from each other; here they don't,
 * so that runs are alike. */
#include "volrend.h"

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("BLOCKS_PER_SIDE", 16, 2, 256),
                                     NUMBER("FRAMES", 6, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    double began = omp_get_wtime();
    volrend_build(parameters[0].value * VOLREND_BLOCK);
    double built = omp_get_wtime();
#pragma omp parallel
    for (size_t frame = 0; frame < parameters[1].value; frame++) {
        volrend_tiles(frame, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
#pragma omp master
        volrend_add_frame();
#pragma omp barrier
    }
    print_result(volume.checksum, built - began, omp_get_wtime() - built);
    volrend_check();

    struct object objects[] = {VOLREND_OBJECTS};
    PAUSE(objects);
}
