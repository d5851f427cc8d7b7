/* stalls [MIB [SECONDS]]: how long visits to pages take, as percentiles.
 *
 * Access pattern, by construction, with T threads:
 *   array     block, loads and stores: thread k visits the pages of share k of T again and again
 * The master initialises it. A visit is a load and a store of every cache line of a page. Prints in
 * microseconds the median of all visits, the 99th, 99.9th and 99.99th percentile, each within a 16th,
 * and the longest visit. */
#include "workload.h"

#include <time.h>

/* 16 buckets per octave of nanoseconds. */
enum { BUCKETS = 64 * 16, PAGE = 4096, LINE = 64 };

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int bucket(uint64_t ns) {
    if (ns < 16)
        return ns;
    int octave = 63 - __builtin_clzll(ns);
    return (octave - 3) * 16 + (ns >> (octave - 4) & 15);
}

/* Upper bound of a bucket, in nanoseconds. */
static double above(int bucket) {
    if (bucket < 16)
        return bucket + 1;
    int octave = bucket / 16 + 3;
    return (double)(1ull << octave) + (bucket % 16 + 1) * (double)(1ull << (octave - 4));
}

int main(int argc, char **argv) {
    size_t pages = argument(argc, argv, 1, 2) * MIB / PAGE;
    double seconds = argument(argc, argv, 2, 20);
    char *array = allocate((pages + 1) * PAGE);
    array += PAGE - (uintptr_t)array % PAGE;
    memset(array, 1, pages * PAGE);
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    static uint64_t visits[BUCKETS], longest, all;
#pragma omp parallel
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        size_t first = share_begin(pages, k, team), end = share_begin(pages, k + 1, team);
        uint64_t *mine = calloc(BUCKETS, sizeof *mine), most = 0, before = now_ns();
        while (before < until)
            for (size_t page = first; page < end; page++) {
                volatile char *line = array + page * PAGE;
                for (int at = 0; at < PAGE; at += LINE)
                    line[at]++;
                uint64_t after = now_ns(), took = after - before;
                mine[bucket(took)]++;
                most = took > most ? took : most;
                before = after;
            }
#pragma omp critical
        for (int at = 0; at < BUCKETS; at++) {
            visits[at] += mine[at];
            all += mine[at];
            longest = most > longest ? most : longest;
        }
    }
    static const double shares[] = {0.5, 0.99, 0.999, 0.9999};
    printf("stalls visits %llu", (unsigned long long)all);
    for (int share = 0; share < LENGTH(shares); share++) {
        uint64_t sum = 0;
        int at = 0;
        while (at < BUCKETS - 1 && (sum += visits[at]) < shares[share] * all)
            at++;
        printf(" p%g %.1f us", 100 * shares[share], above(at) / 1000);
    }
    printf(" longest %.0f us\n", longest / 1000.0);
    return 0;
}
