/* radix: integers sorted by digits of ten bits, as in SPLASH-2.
 *
 * Access pattern, by construction, with T threads:
 *   keys         block: thread k reads share k of T
 *   ping, pong   read in blocks; written all to all: a thread's keys of one digit go to
 *                consecutive places, 1024 such streams all over the array
 *   counts       thread k writes row k of T; of all rows, it reads the counts before its own
 * The master initialises everything, or with --parallel-init each thread its share. */
#include "workload.h"

#define DIGIT_BITS 10
#define DIGITS (1 << DIGIT_BITS)

static size_t count;
static uint32_t *keys, *ping, *pong;
static uint64_t *counts;

static size_t passes;

static void fill(size_t first, size_t end) {
    for (size_t i = first; i < end; i++) {
        keys[i] = random_at(i) >> (64 - DIGIT_BITS * passes);
        ping[i] = pong[i] = 0;
    }
}

/* Places of the calling thread's first key of each digit. Every thread adds up all rows, because
 * even the first digits' places depend on the counts of all threads. */
static void places(uint64_t *place) {
    int team = omp_get_num_threads(), me = omp_get_thread_num();
    uint64_t before = 0;
    for (size_t digit = 0; digit < DIGITS; digit++)
        for (int t = 0; t < team; t++) {
            if (t == me)
                place[digit] = before;
            before += counts[t * DIGITS + digit];
        }
}

static void pass(const uint32_t *from, uint32_t *to, int shift) {
    struct share mine = my_share(count);
    uint64_t *my_counts = counts + omp_get_thread_num() * DIGITS, place[DIGITS];
    memset(my_counts, 0, DIGITS * sizeof *my_counts);
    for (size_t i = mine.first; i < mine.end; i++)
        my_counts[from[i] >> shift & (DIGITS - 1)]++;
#pragma omp barrier
    places(place);
    for (size_t i = mine.first; i < mine.end; i++)
        to[place[from[i] >> shift & (DIGITS - 1)]++] = from[i];
#pragma omp barrier
}

int main(int argc, char **argv) {
    struct parameter parameters[] = {PARALLEL_INIT,
                                     NUMBER("KEYS", 262144, 1, (size_t)1 << 40),
                                     NUMBER("DIGITS_OF_TEN_BITS", 2, 1, 3),
                                     NUMBER("ROUNDS", 20, 1, 1000000000)};
    READ_PARAMETERS(parameters);
    count = parameters[1].value;
    passes = parameters[2].value;
    size_t bytes = count * sizeof *keys;
    size_t count_bytes = omp_get_max_threads() * DIGITS * sizeof *counts;
    keys = allocate(bytes);
    ping = allocate(bytes);
    pong = allocate(bytes);
    counts = allocate(count_bytes);
    double began = omp_get_wtime();
    memset(counts, 0, count_bytes);
    fill_shares(parameters[0].value, count, fill);

    double built = omp_get_wtime();
    uint32_t *to[] = {ping, pong}, *sorted = to[(passes - 1) % 2];
#pragma omp parallel
    for (size_t round = 0; round < parameters[3].value; round++)
        for (size_t p = 0; p < passes; p++)
            pass(p ? to[(p - 1) % 2] : keys, to[p % 2], p * DIGIT_BITS);
    double computed = omp_get_wtime();

    /* Sums of a hash: equal for a permutation, and very unlikely equal otherwise. */
    uint64_t in = 0, out = 0, checksum = 0;
    for (size_t i = 0; i < count; i++) {
        in += random_at(keys[i]);
        out += random_at(sorted[i]);
        checksum += sorted[i] * (i + 1);
    }
    print_result(checksum >> 20, built - began, computed - built);
    for (size_t i = 1; i < count; i++)
        REQUIRE(sorted[i - 1] <= sorted[i], "keys %zu and %zu are out of order", i - 1, i);
    REQUIRE(in == out, "what came out is no permutation of what went in");

    struct object objects[] = {{"keys", keys, bytes},
                               {"ping", ping, bytes},
                               {"pong", pong, bytes},
                               {"counts", counts, count_bytes}};
    PAUSE(objects);
}
