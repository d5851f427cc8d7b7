/* cluster [POINTS [DIMENSIONS [ITERATIONS]]]: distances of points to sampled centres, with
 * the access pattern of PARSEC's Streamcluster.
 *
 * Access pattern, by construction, with T threads:
 *   block     shared: coordinates, read at random by all threads, never written after the
 *             master has filled it
 *   closest   block: the closest centre so far of each point; thread k reads and writes
 *             share k of T
 * The master initialises both. */
#include "workload.h"

/* 32 bytes, a fifth of a point's coordinates by default: large enough to be worth placing. */
struct choice {
    double distance, previous, weight;
    uint64_t centre;
};

static size_t points, dimensions;
static float *block;
static struct choice *closest;

static double distance(const float *a, const float *b) {
    double sum = 0;
    for (size_t d = 0; d < dimensions; d++)
        sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}

static void choose(size_t first, size_t end, uint64_t *seed) {
    for (size_t i = first; i < end; i++) {
        size_t point = random_below(seed, points), centre = random_below(seed, points);
        double found = distance(&block[point * dimensions], &block[centre * dimensions]);
        if (found < closest[i].distance) {
            closest[i].previous = closest[i].distance;
            closest[i].distance = found;
            closest[i].centre = centre;
        }
        closest[i].weight += 1;
    }
}

int main(int argc, char **argv) {
    points = argument(argc, argv, 1, 1000000);
    dimensions = argument(argc, argv, 2, 40);
    int iterations = argument(argc, argv, 3, 20);
    if (!points || !dimensions)
        die("at least one point and one dimension");
    size_t block_bytes = points * dimensions * sizeof *block;
    size_t closest_bytes = points * sizeof *closest;
    block = allocate(block_bytes);
    closest = allocate(closest_bytes);
    uint64_t seed = random_seed(1000);
    for (size_t i = 0; i < points * dimensions; i++)
        block[i] = (float)(random_next(&seed) >> 40) / (1 << 24);
    for (size_t i = 0; i < points; i++)
        closest[i] = (struct choice){.distance = 1e30};

    double began = omp_get_wtime(), checksum = 0;
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        uint64_t seed = random_seed(k);
        size_t first = share_begin(points, k, team), end = share_begin(points, k + 1, team);
        for (long round = 0; another_round(round); round++) {
            for (int iteration = 0; iteration < iterations; iteration++) {
                choose(first, end, &seed);
#pragma omp barrier
            }
#pragma omp master
            round_ended(round);
        }
        double mine = 0;
        for (size_t i = first; i < end; i++)
            mine += closest[i].distance;
        double sum = team_sum(mine);
#pragma omp master
        checksum = sum;
    }
    double seconds = omp_get_wtime() - began;
    printf("cluster checksum %.12g compute %.3f s\n", checksum, seconds);

    struct object objects[] = {{"block", block, block_bytes}, {"closest", closest, closest_bytes}};
    PAUSE(objects);
}
