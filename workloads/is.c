/* is: integers ranked by counting, in the manner of NPB IS.
 *
 * Access pattern, by construction, with T threads; K is 2^LOG2_LARGEST_KEY:
 *   keys       block: thread k reads share k of T
 *   private    K counts for each thread, allocated and written at random by this thread; then all
 *              threads read all counts, each thread one stripe of them
 *   ranks      block: the sums of all counts by stripes, then written as running sums
 *   sorted     only at the end: each thread writes its keys all over the array
 * Rankings are short bursts: random writes, then each thread reads the counts of all threads.
 * The master initialises keys and sorted, or with --parallel-init each thread its share. */
#include "workload.h"

static size_t count, largest;
static uint32_t *keys, *sorted, **private;
static uint64_t *ranks, *stripe_sums;

/* The mean of four uniform numbers, as in NPB: most keys are in the middle. */
static void fill(size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        double sum = 0;
        for (size_t j = 0; j < 4; j++)
            sum += unit(random_at(4 * i + j));
        keys[i] = sum / 4 * largest;
        sorted[i] = 0;
    }
}

/* Sets ranks[key] to the number of keys below `key`. */
static void rank_keys(void) {
    int me = omp_get_thread_num(), team = omp_get_num_threads();
    struct share mine = my_share(count), stripe = my_share(largest);
    uint32_t *counts = private[me];
    memset(counts, 0, largest * sizeof *counts);
    for (size_t i = mine.first; i < mine.end; i++)
        counts[keys[i]]++;
#pragma omp barrier
    uint64_t sum = 0;
    for (size_t key = stripe.first; key < stripe.end; key++) {
        ranks[key] = sum;
        for (int t = 0; t < team; t++)
            sum += private[t][key];
    }
    stripe_sums[me] = sum;
#pragma omp barrier
    uint64_t before = 0;
    for (int t = 0; t < me; t++)
        before += stripe_sums[t];
    for (size_t key = stripe.first; key < stripe.end; key++)
        ranks[key] += before;
#pragma omp barrier
}

/* Thread k's keys of a value follow the keys of the threads before it. */
static void scatter(uint64_t *place) {
    struct share mine = my_share(count);
    for (size_t key = 0; key < largest; key++) {
        place[key] = ranks[key];
        for (int t = 0; t < omp_get_thread_num(); t++)
            place[key] += private[t][key];
    }
    for (size_t i = mine.first; i < mine.end; i++)
        sorted[place[keys[i]]++] = keys[i];
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT, NUMBER("LOG2_KEYS", 20, 1, 40),
                                     NUMBER("LOG2_LARGEST_KEY", 16, 1, 31),
                                     NUMBER("ITERATIONS", 10, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    count = (size_t)1 << parameters[1].value;
    largest = (size_t)1 << parameters[2].value;
    size_t iterations = parameters[3].value, threads = omp_get_max_threads();
    keys = allocate(count * sizeof *keys);
    sorted = allocate(count * sizeof *sorted);
    ranks = allocate(largest * sizeof *ranks);
    private = allocate(threads * sizeof *private);
    stripe_sums = allocate(threads * sizeof *stripe_sums);
    double began = omp_get_wtime();
    fill_shares(parameters[0].value, count, fill);

    double built = omp_get_wtime();
    uint64_t checksum = 0, in = 0, out = 0;
#pragma omp parallel
    {
        private[omp_get_thread_num()] = allocate(largest * sizeof **private);
        for (size_t iteration = 0; iteration < iterations; iteration++) {
            /* Two keys change in each iteration, so that the ranks change. */
#pragma omp master
            {
                keys[iteration % count] = iteration % largest;
                keys[(iteration + iterations) % count] = largest - 1 - iteration % largest;
            }
#pragma omp barrier
            rank_keys();
#pragma omp master
            for (size_t probe = 0; probe < 5; probe++)
                checksum += ranks[keys[random_at(probe) % count]];
        }
        uint64_t *place = allocate(largest * sizeof *place);
        scatter(place);
        free(place);
    }
    double computed = omp_get_wtime();
    for (size_t i = 0; i < count; i++) {
        in += random_at(keys[i]);
        out += random_at(sorted[i]);
    }
    print_result(checksum, built - began, computed - built);
    for (size_t i = 1; i < count; i++)
        REQUIRE(sorted[i - 1] <= sorted[i], "keys %zu and %zu are out of order", i - 1, i);
    REQUIRE(in == out, "what came out is no permutation of what went in");

    struct object objects[] = {{"keys", keys, count * sizeof *keys},
                               {"sorted", sorted, count * sizeof *sorted},
                               {"ranks", ranks, largest * sizeof *ranks},
                               {"private", private[0], largest * sizeof **private}};
    PAUSE(objects);
}
