// Teams of three and then (in `second`) four threads, which show their allowed CPUs: `FIRST number CPUs firstCPU`. With
// `free`, thread 1 of the first team allows itself all CPUs. With `late`, there is no first team.
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static cpu_set_t all;

static void show(const char *team) {
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    int first = 0;
    while (first < CPU_SETSIZE && !CPU_ISSET(first, &cpus)) first++;
#pragma omp critical
    printf("%s %d %d %d\n", team, omp_get_thread_num(), CPU_COUNT(&cpus), first);
}

__attribute__((noinline)) static void first(int is_free) {
#pragma omp parallel num_threads(3)
    {
        show("FIRST");
        if (is_free && omp_get_thread_num() == 1) sched_setaffinity(0, sizeof all, &all);
    }
}

__attribute__((noinline)) static void second(void) {
#pragma omp parallel num_threads(4)
    show("SECOND");
}

int main(int argc, char **argv) {
    int is_free = argc > 1 && !strcmp(argv[1], "free");
    sched_getaffinity(0, sizeof all, &all);
    if (argc < 2 || strcmp(argv[1], "late")) first(is_free);
    second();
    return 0;
}
