/* tick_gaps SECONDS: reads the clock for so many seconds of its own time, and prints the lower quartile
 * of the gaps that ticks leave, in nanoseconds, and how many there were a second. (What else the machine
 * does makes gaps longer.)
 *
 * Ticks are the gaps that begin at the same time after a multiple of the tick's period, give or take a
 * BINSth of it; others are other CPUs' calls, and other programs that had their turn. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GAPS_MAX = 1 << 20, BINS = 64 };
static const uint64_t SHORTEST_NS = 1000, LONGEST_NS = 200000;
static uint64_t lengths_ns[GAPS_MAX];
static uint8_t bins[GAPS_MAX];

static uint64_t now_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 10;
    struct timespec resolution;
    clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
    uint64_t tick_ns = resolution.tv_nsec, in_bin[BINS] = {0};
    size_t gaps = 0, kept = 0;
    uint64_t before = now_ns(CLOCK_MONOTONIC);
    for (uint64_t reads = 1; gaps < GAPS_MAX; reads++) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), gap = now - before;
        if (gap >= SHORTEST_NS && gap <= LONGEST_NS) {
            lengths_ns[gaps] = gap;
            in_bin[bins[gaps++] = before % tick_ns * BINS / tick_ns]++;
        }
        before = now;
        if (reads % (1 << 20) == 0) {
            if (now_ns(CLOCK_THREAD_CPUTIME_ID) > 1e9 * seconds) break;
            before = now_ns(CLOCK_MONOTONIC);
        }
    }
    int fullest = 0;
    for (int bin = 0; bin < BINS; bin++)
        if (in_bin[bin] > in_bin[fullest]) fullest = bin;
    for (size_t gap = 0; gap < gaps; gap++)
        if ((bins[gap] - fullest + BINS + 1) % BINS <= 2) lengths_ns[kept++] = lengths_ns[gap];
    if (!kept) return 1;
    qsort(lengths_ns, kept, sizeof *lengths_ns, ascending);
    printf("%llu %.0f\n", (unsigned long long)lengths_ns[kept / 4], kept / seconds);
}
