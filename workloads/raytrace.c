/* raytrace: renders a cloud of spheres, some of them mirrors, from a camera that circles the cloud, with
 * the access pattern of SPLASH's Raytrace.
 *
 * Access pattern, by construction, with T threads:
 *   nodes, spheres   shared: read by all wherever their rays go, never written after the master
 *                    has built the scene
 *   image            tiles of 8 x 8 pixels, contiguous (256 bytes): thread k has tiles k, k + T, k + 2 T, …
 *                    in its queue, and writes them unless others steal them; the master reads all
 *                    between frames
 *   queues           each thread's next tile and its lock: written by the thread for every tile, and by
 *                    threads that have none left
 *   rays             the number of the next ray, which each thread writes for every ray
 * Rays end at most spheres, as a third of them are mirrors. So what the camera sees is hot, and what lies deep in the
 * cloud is cold. With --mark the frames are the stable phase. The master initialises everything. */
#include "nearpage.h"
#include "raytrace.h"

/* The tiles of a frame that a thread has to render, and that others may take from it. */
static struct queue {
    _Alignas(64) omp_lock_t lock;
    size_t next;
} *queues;

/* Deals a frame's tiles out in turn. */
static void fill_queues(int threads) {
    for (int k = 0; k < threads; k++)
        queues[k].next = k;
}

/* Takes a tile from the thread's own queue, or else from the next one that has any. Returns 0 if none is left. */
static int take_tile(int self, int threads, size_t *tile) {
    for (int k = 0; k < threads; k++) {
        struct queue *queue = &queues[(self + k) % threads];
        omp_set_lock(&queue->lock);
        *tile = queue->next;
        int taken = *tile < raytrace_tile_count();
        if (taken)
            queue->next += threads;
        omp_unset_lock(&queue->lock);
        if (taken)
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {NUMBER("SPHERES", 190000, 1, 1000000000),
                                     NUMBER("TILES_PER_SIDE", 64, 1, 4096),
                                     NUMBER("FRAMES", 1, 1, 1000000000), FLAG("--mark")};
    READ_PARAMETERS(parameters);
    double began = omp_get_wtime();
    raytrace_build(parameters[0].value, parameters[1].value * RAYTRACE_TILE);
    double built = omp_get_wtime();
    int threads = omp_get_max_threads();
    queues = aligned_alloc(64, threads * sizeof *queues);
    if (!queues)
        die("out of memory");
    for (int k = 0; k < threads; k++)
        omp_init_lock(&queues[k].lock);
    fill_queues(threads);
    if (parameters[3].value)
        nearpage_begin();
#pragma omp parallel
    for (size_t frame = 0; frame < parameters[2].value; frame++) {
        size_t tile;
        while (take_tile(omp_get_thread_num(), threads, &tile))
            raytrace_tile(frame, tile);
#pragma omp barrier
#pragma omp master
        {
            raytrace_add_frame();
            fill_queues(threads);
        }
#pragma omp barrier
    }
    if (parameters[3].value)
        nearpage_end();
    print_result(tracer.checksum, built - began, omp_get_wtime() - built);
    raytrace_check(parameters[2].value - 1);

    struct object objects[] = {RAYTRACE_OBJECTS};
    PAUSE(objects);
}
