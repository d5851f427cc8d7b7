/* tick_gaps SECONDS: reads the clock for so many seconds of its own time, and prints the usual length of
 * the gaps that ticks leave, in nanoseconds, and how many gaps there were a second.
 *
 * Gaps below SHORTEST_NS are other CPUs' calls, of which there are more; the usual length is the mode, as
 * the half of the gaps that lie closest together, the half of those, and so on (Robertson and Cryer, "An
 * iterative procedure for estimating the mode", 1974): what else the machine does makes gaps longer, the
 * mode hardly. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GAPS_MAX = 1 << 20 };
static const uint64_t SHORTEST_NS = 5000;
static uint64_t gaps_ns[GAPS_MAX];

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
    size_t gaps = 0;
    uint64_t before = now_ns(CLOCK_MONOTONIC);
    for (uint64_t reads = 1; gaps < GAPS_MAX; reads++) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), gap = now - before;
        before = now;
        if (gap >= SHORTEST_NS) gaps_ns[gaps++] = gap;
        if (reads % (1 << 20) == 0) {
            if (now_ns(CLOCK_THREAD_CPUTIME_ID) > 1e9 * seconds) break;
            before = now_ns(CLOCK_MONOTONIC);
        }
    }
    if (!gaps) return 1;
    double per_second = gaps / seconds;
    qsort(gaps_ns, gaps, sizeof *gaps_ns, ascending);
    const uint64_t *from = gaps_ns;
    while (gaps > 2) {
        size_t half = (gaps + 1) / 2, best = 0;
        for (size_t at = 1; at + half <= gaps; at++)
            if (from[at + half - 1] - from[at] < from[best + half - 1] - from[best]) best = at;
        from += best;
        gaps = half;
    }
    printf("%llu %.0f\n", (unsigned long long)((from[0] + from[gaps - 1]) / 2), per_second);
}
