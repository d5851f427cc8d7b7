/* tracking_cost [PAIRS]: measures the cost of page-fault samples and mapping records for programs that only fault and
 * map. Alternates the same work with and without the event, about a millisecond each. Prints the median and quartiles
 * of the ratios of this thread's CPU time. Opens events like the sampler (crates/sampler/src/opening.rs), but only for
 * this thread. */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, RING = 512 << 10, FAULT_PERIOD = 61 };

static void map_and_touch(int times, size_t bytes) {
    for (int i = 0; i < times; i++) {
        volatile char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t k = 0; k < bytes; k += PAGE)
            p[k] = 1;
        munmap((void *)p, bytes);
    }
}
static void one_page(void) { map_and_touch(300, PAGE); }
static void many_pages(void) { map_and_touch(15, 64 * PAGE); }
static void large_mallocs(void) {
    for (int i = 0; i < 15; i++) {
        volatile char *p = malloc(256 << 10);
        for (size_t k = 0; k < 256 << 10; k += 64)
            p[k] = 1;
        free((void *)p);
    }
}
static void small_mallocs(void) {
    static char *p[4096];
    for (int k = 0; k < 4096; k++)
        *(volatile char *)(p[k] = malloc(16 + k * 37 % 2000)) = 1;
    for (int k = 0; k < 4096; k++)
        free(p[k]);
    malloc_trim(0);
}

static const struct { const char *name; void (*run)(void); } work[] = {
    {"mmap, touch, munmap 1 page", one_page},
    {"mmap, touch, munmap 64 pages", many_pages},
    {"malloc, fill, free 256 KiB", large_mallocs},
    {"4096 small mallocs, trimmed", small_mallocs},
};
static const struct { const char *name; int faults, period, maps; } events[] = {
    {"nothing (dummy event)", 0, 0, 0},
    {"faults counted", 1, 0, 0},
    {"faults, 1 in 61 sampled", 1, FAULT_PERIOD, 0},
    {"mappings", 0, 0, 1},
    {"both, as recorded", 1, FAULT_PERIOD, 1},
};

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 400;
    double *ratios = malloc(pairs * sizeof *ratios);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    for (size_t w = 0; w < sizeof work / sizeof *work; w++) {
        puts(work[w].name);
        for (size_t e = 0; e < sizeof events / sizeof *events; e++) {
            for (int pair = 0; pair < pairs; pair++) {
                double ns[2];
                for (int turn = 0; turn < 2; turn++) {
                    int on = turn ^ (pair & 1), fd = -1;
                    char *ring = NULL;
                    if (on) {
                        struct perf_event_attr a = {
                            .size = sizeof a, .type = PERF_TYPE_SOFTWARE,
                            .config = events[e].faults ? PERF_COUNT_SW_PAGE_FAULTS : PERF_COUNT_SW_DUMMY,
                            .sample_period = events[e].period, .sample_id_all = 1, .comm = 1, .task = 1,
                            .sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TID |
                                           PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR | PERF_SAMPLE_CPU,
                            .mmap = events[e].maps, .mmap2 = events[e].maps, .mmap_data = events[e].maps,
                        };
                        fd = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
                        ring = fd < 0 ? MAP_FAILED : mmap(0, PAGE + RING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
                        if (ring == MAP_FAILED) {
                            perror("perf_event_open");
                            return 1;
                        }
                    }
                    work[w].run(); /* Warms up, because opening the event changes the caches. */
                    double began = now_ns();
                    work[w].run();
                    ns[on] = now_ns() - began;
                    if (on) {
                        munmap(ring, PAGE + RING);
                        close(fd);
                    }
                }
                ratios[pair] = ns[1] / ns[0];
            }
            qsort(ratios, pairs, sizeof *ratios, ascending);
            printf("  %-26s %.4f  (quartiles %.3f to %.3f)\n", events[e].name, ratios[pairs / 2],
                   ratios[pairs / 4], ratios[pairs * 3 / 4]);
        }
    }
}
