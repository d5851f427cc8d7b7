/* What every workload needs: arguments, memory, random numbers, shares of a team, and a
 * pause that lets a test look at where the pages are.
 *
 * With WORKLOAD_PAUSE_FILE=PATH in the environment, pause_for_inspection() writes
 *
 *     pid PID
 *     thread INDEX TID CPU          one per thread of the OpenMP team
 *     object NAME 0xADDRESS SIZE    one per object, size in bytes
 *
 * to PATH (complete as soon as it exists) and waits until PATH.go exists, for at
 * most 60 seconds. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

struct object {
    const char *name;
    const void *address;
    size_t size;
};

static inline void die(const char *message) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, message);
    exit(1);
}

/* Positional argument `index` as a positive number. */
static inline double argument(int argc, char **argv, int index, double otherwise) {
    if (index >= argc)
        return otherwise;
    char *end;
    double value = strtod(argv[index], &end);
    if (end == argv[index] || *end || !(value > 0))
        die("arguments are positive numbers");
    return value;
}

/* Takes `--name` out of the arguments; true if it was there. */
static inline int flag(int *argc, char **argv, const char *name) {
    for (int i = 1; i < *argc; i++)
        if (!strcmp(argv[i], name)) {
            memmove(&argv[i], &argv[i + 1], (*argc - i) * sizeof *argv);
            --*argc;
            return 1;
        }
    return 0;
}

static inline void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        die("out of memory");
    return memory;
}

/* xorshift64: the state is the number, and never zero. */
static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
    return (unsigned __int128)random_next(state) * bound >> 64;
}

static inline uint64_t random_seed(uint64_t which) {
    return (which + 1) * 0x9E3779B97F4A7C15u;
}

/* Where share `k` of `n` begins when `count` elements are divided over `n`. */
static inline size_t share_begin(size_t count, int k, int n) {
    return (unsigned __int128)count * k / n;
}

/* The sum of every thread's `mine`, called by the whole OpenMP team. Adds up in thread order,
 * so that a given number of threads gives one result to the last bit. */
static inline double team_sum(double mine) {
    static struct {
        _Alignas(64) double sum;
    } partial[1024];
    if (omp_get_num_threads() > 1024)
        die("at most 1024 threads");
    partial[omp_get_thread_num()].sum = mine;
#pragma omp barrier
    double sum = 0;
    for (int t = 0; t < omp_get_num_threads(); t++)
        sum += partial[t].sum;
#pragma omp barrier
    return sum;
}

static inline void pause_for_inspection(const struct object *objects, int count) {
    const char *path = getenv("WORKLOAD_PAUSE_FILE");
    if (!path)
        return;
    char other[4096];
    snprintf(other, sizeof other, "%s.new", path);
    FILE *table = fopen(other, "w");
    if (!table)
        die("cannot write WORKLOAD_PAUSE_FILE");
    fprintf(table, "pid %d\n", (int)getpid());
#pragma omp parallel
#pragma omp critical
    fprintf(table, "thread %d %ld %d\n", omp_get_thread_num(), syscall(SYS_gettid), sched_getcpu());
    for (int i = 0; i < count; i++)
        fprintf(table, "object %s 0x%lx %zu\n", objects[i].name,
                (unsigned long)objects[i].address, objects[i].size);
    if (fclose(table) || rename(other, path))
        die("cannot write WORKLOAD_PAUSE_FILE");
    snprintf(other, sizeof other, "%s.go", path);
    for (int tick = 0; tick < 600 && access(other, F_OK); tick++)
        usleep(100 * 1000);
}

#define PAUSE(objects) pause_for_inspection(objects, sizeof(objects) / sizeof *(objects))

#endif
