/* tick_gaps SECONDS: looks up words of a mebibyte at random, as crates/sampler/src/sample_cost.rs does,
 * for so many seconds of its own time, and prints how much longer a window of that is when a tick comes in
 * it (the lower quartile: what else the machine does makes it longer), in nanoseconds, and how many such windows there were a second. What a tick throws out of the cache
 * is fetched again in that window and in the next one, which is counted as well.
 *
 * When ticks come: first it reads the clock only. Ticks are the gaps that begin at the same time after a
 * multiple of the tick's period, give or take a BINSth of it; others are other CPUs' calls, and other
 * programs that had their turn. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SAMPLES_MAX = 1 << 20, BINS = 64, LINES = (1 << 20) / 64, LOOKUPS = 8192 };
static const uint64_t SHORTEST_NS = 1000, LONGEST_NS = 200000;
static uint64_t begins_ns[SAMPLES_MAX];
static int64_t longer_ns[SAMPLES_MAX];
static int64_t bare_ns[SAMPLES_MAX];
static uint64_t table[LINES][8];
static uint64_t state = 1, tick_ns;

static uint64_t now_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* The value below which a quarter, or a half, of all are. */
static int64_t quantile(int64_t *values, size_t count, size_t of) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / of];
}

/* How long after a multiple of their period ticks come. */
static int64_t phase_ns(double seconds) {
    uint64_t in_bin[BINS] = {0};
    size_t gaps = 0, kept = 0;
    uint64_t begin = now_ns(CLOCK_THREAD_CPUTIME_ID), before = now_ns(CLOCK_MONOTONIC);
    for (uint64_t reads = 1; gaps < SAMPLES_MAX; reads++) {
        uint64_t now = now_ns(CLOCK_MONOTONIC), gap = now - before;
        if (gap >= SHORTEST_NS && gap <= LONGEST_NS) {
            begins_ns[gaps] = before % tick_ns;
            in_bin[begins_ns[gaps++] * BINS / tick_ns]++;
        }
        before = now;
        if (reads % (1 << 20) == 0) {
            if (now_ns(CLOCK_THREAD_CPUTIME_ID) - begin > 1e9 * seconds) break;
            before = now_ns(CLOCK_MONOTONIC);
        }
    }
    int fullest = 0;
    for (int bin = 0; bin < BINS; bin++)
        if (in_bin[bin] > in_bin[fullest]) fullest = bin;
    int64_t bin_ns = tick_ns / BINS, middle_ns = fullest * bin_ns + bin_ns / 2;
    for (size_t gap = 0; gap < gaps; gap++) {
        int64_t off = ((int64_t)begins_ns[gap] - middle_ns + 3 * (int64_t)tick_ns / 2) % tick_ns - tick_ns / 2;
        if (llabs(off) <= bin_ns) longer_ns[kept++] = off;
    }
    if (!kept) return -1;
    return (middle_ns + quantile(longer_ns, kept, 2) + (int64_t)tick_ns) % (int64_t)tick_ns;
}

static uint64_t work(void) {
    uint64_t sum = 0;
    for (int lookup = 0; lookup < LOOKUPS; lookup++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        sum += table[(state >> 40) % LINES][0];
    }
    return sum;
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 10;
    struct timespec resolution;
    clock_getres(CLOCK_MONOTONIC_COARSE, &resolution);
    tick_ns = resolution.tv_nsec;
    for (size_t line = 0; line < LINES; line++) table[line][0] = line;
    int64_t phase = phase_ns(0.5);
    if (phase < 0) return 1;
    size_t ticks = 0, bare = 0;
    int64_t window = 0, before_last = 0;
    int ticked = 0, ticked_before = 0;
    volatile uint64_t sink = 0;
    uint64_t last_tick = 0;
    for (uint64_t windows = 1; ticks < SAMPLES_MAX && bare < SAMPLES_MAX; windows++) {
        uint64_t begin = now_ns(CLOCK_MONOTONIC);
        sink += work();
        uint64_t end = now_ns(CLOCK_MONOTONIC), tick = (end - phase) / tick_ns;
        before_last = window;
        window = end - begin;
        ticked_before = ticked;
        ticked = windows > 1 && tick != last_tick && tick != (begin - phase) / tick_ns;
        last_tick = tick;
        if (window > (int64_t)LONGEST_NS || before_last > (int64_t)LONGEST_NS) continue;
        if (ticked_before && !ticked)
            longer_ns[ticks++] = before_last + window;
        else if (!ticked && windows % 16 == 0)
            bare_ns[bare++] = window;
        if (windows % 4096 == 0 && now_ns(CLOCK_THREAD_CPUTIME_ID) > 1e9 * seconds) break;
    }
    if (!ticks || !bare) return 1;
    printf("%lld %.0f\n", (long long)(quantile(longer_ns, ticks, 4) - 2 * quantile(bare_ns, bare, 4)), ticks / seconds);
}
