/* raytrace: renders a cloud of spheres, some of them mirrors, from a camera that circles the cloud, with
 * the access pattern of SPLASH's Raytrace.
 *
 * Access pattern, by construction, with T threads:
 *   nodes, spheres   shared: read by all wherever their rays go, never written after the master
 *                    has built the scene
 *   image            tiles of 8 x 8 pixels, contiguous (256 bytes): thread k writes tiles k, k + T,
 *                    k + 2 T, …; the master reads all between frames
 *   rays             the number of the next ray, which each thread writes for every ray
 * With --mark the frames are the stable phase. The master initialises everything. SPLASH's threads steal tiles from
 * each other; here they don't, so that runs are alike. */
#include "nearpage.h"
#include "raytrace.h"

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("SPHERES", 20000, 1, 1000000000),
                                     NUMBER("TILES_PER_SIDE", 24, 1, 4096),
                                     NUMBER("FRAMES", 6, 1, 1000000000), FLAG("--mark")};
    READ_PARAMETERS(parameters);
    double began = omp_get_wtime();
    raytrace_build(parameters[0].value, parameters[1].value * RAYTRACE_TILE);
    double built = omp_get_wtime();
    if (parameters[3].value)
        nearpage_begin();
#pragma omp parallel
    for (size_t frame = 0; frame < parameters[2].value; frame++) {
        raytrace_tiles(frame, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
#pragma omp master
        raytrace_add_frame();
#pragma omp barrier
    }
    if (parameters[3].value)
        nearpage_end();
    print_result(tracer.checksum, built - began, omp_get_wtime() - built);
    raytrace_check(parameters[2].value - 1);

    struct object objects[] = {RAYTRACE_OBJECTS};
    PAUSE(objects);
}
