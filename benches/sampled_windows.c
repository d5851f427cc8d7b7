/* sampled_windows SECONDS FILE: works in adjacent windows of about 25 us. In each, it reads random words of 1 MiB, as
 * crates/sampler/src/sample_cost.rs does. At the end, it writes two 64-bit numbers for each window: the start time
 * (CLOCK_MONOTONIC, nanoseconds), and the number of the thread's context switches up to then. A window ends when the
 * next one starts. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

enum { WINDOWS_MAX = 1 << 21, LINES = (1 << 20) / 64, LOOKUPS = 16384 };
static uint64_t table[LINES][8];
static struct { uint64_t begin_ns, switches; } windows[WINDOWS_MAX];
static uint64_t state = 1;

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
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
    if (count != 3) return 2;
    /* Touches all pages first, so that no window has a page fault. */
    for (size_t line = 0; line < LINES; line++) table[line][0] = line;
    for (size_t window = 0; window < WINDOWS_MAX; window++) windows[window].switches = 1;
    uint64_t end_ns = now_ns() + 1e9 * atof(words[1]);
    volatile uint64_t sink = 0;
    size_t done = 0;
    for (; done < WINDOWS_MAX; done++) {
        struct rusage used;
        getrusage(RUSAGE_THREAD, &used);
        windows[done].switches = used.ru_nvcsw + used.ru_nivcsw;
        windows[done].begin_ns = now_ns();
        if (windows[done].begin_ns >= end_ns) break;
        sink += work();
    }
    FILE *file = fopen(words[2], "w");
    if (!file || fwrite(windows, sizeof *windows, done, file) != done || fclose(file)) {
        perror(words[2]);
        return 1;
    }
}
