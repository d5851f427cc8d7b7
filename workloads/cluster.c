/* cluster [POINTS [DIMENSIONS [ITERATIONS]]]: distances of all points to one candidate centre after another, with the
 * access pattern of PARSEC's Streamcluster (its loop over points in pgain).
 *
 * Access pattern, by construction, with T threads:
 *   block     shared: coordinates, never written after the master has filled it. As in PARSEC, points are shuffled, so
 *             that neighbours in a thread's share have coordinates anywhere in the block.
 *   closest   block: the points, each with the closest centre so far; thread k reads share k of T, and writes points
 *             for which the candidate is closer
 * The master initialises both. All threads read the candidate's coordinates, which stay in their caches. */
#include "workload.h"

/* 32 bytes, like PARSEC's Point: a sixteenth of the coordinates of a point with 128 dimensions. */
struct point {
    float weight, cost;
    const float *coordinates;
    uint64_t centre, switches;
};

static size_t points, dimensions;
static float *block;
static struct point *closest;

/* PARSEC is built with -O3 -funroll-loops. */
static float distance(const float *a, const float *b) {
    float sum = 0;
#pragma GCC unroll 8
    for (size_t d = 0; d < dimensions; d++)
        sum += (a[d] - b[d]) * (a[d] - b[d]);
    return sum;
}

/* Assigns points to a candidate that is closer than their centres; returns the saved cost. */
static double choose(size_t first, size_t end, size_t candidate) {
    const float *centre = &block[candidate * dimensions];
    double saved = 0;
    for (size_t i = first; i < end; i++) {
        float found = distance(closest[i].coordinates, centre) * closest[i].weight;
        if (found < closest[i].cost) {
            saved += closest[i].cost - found;
            closest[i].cost = found;
            closest[i].centre = candidate;
            closest[i].switches++;
        }
    }
    return saved;
}

static void shuffle(uint64_t *seed) {
    for (size_t i = points - 1; i > 0; i--) {
        size_t j = random_below(seed, i + 1);
        struct point moved = closest[i];
        closest[i] = closest[j];
        closest[j] = moved;
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
        closest[i] = (struct point){.weight = 1, .cost = 1e30f, .coordinates = &block[i * dimensions]};
    shuffle(&seed);

    double began = omp_get_wtime(), checksum = 0;
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        /* The same seed, so that all threads choose the same candidates. */
        uint64_t seed = random_seed(1);
        double saved = 0;
        size_t first = share_begin(points, k, team), end = share_begin(points, k + 1, team);
        for (long round = 0; has_round(round); round++) {
            for (int iteration = 0; iteration < iterations; iteration++) {
                saved += choose(first, end, random_below(&seed, points));
#pragma omp barrier
            }
#pragma omp master
            round_ended(round);
        }
        double mine = 0;
        for (size_t i = first; i < end; i++)
            mine += closest[i].cost;
        REQUIRE(saved >= 0, "%g saved", saved);
        double sum = team_sum(mine);
#pragma omp master
        checksum = sum;
    }
    double seconds = omp_get_wtime() - began;
    printf("cluster checksum %.12g compute %.3f s\n", checksum, seconds);

    struct object objects[] = {{"block", block, block_bytes}, {"closest", closest, closest_bytes}};
    PAUSE(objects);
}
