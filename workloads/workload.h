/* Common part of all workloads: arguments, checks, memory, random numbers, shares of a team, and
 * a pause in which a test inspects the nodes of pages.
 *
 * With WORKLOAD_PAUSE_FILE=PATH in the environment, pause_for_inspection() writes
 *
 *     pid PID
 *     thread INDEX TID CPU          one per thread of the OpenMP team
 *     object NAME 0xADDRESS SIZE    one per object, size in bytes
 *
 * to PATH (complete as soon as it exists) and waits until PATH.go exists, for at
 * most 60 seconds.
 *
 * With WORKLOAD_UNTIL=PATH, some programs (triad, cluster, pairs, restless) repeat their computation until
 * PATH exists. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
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

/* Positional argument `index` as a positive number; `otherwise` if absent. */
static inline double argument(int argc, char **argv, int index, double otherwise) {
    if (index >= argc)
        return otherwise;
    char *end;
    double value = strtod(argv[index], &end);
    if (end == argv[index] || *end || !(value > 0)) {
        fprintf(stderr, "usage: %s: arguments are positive numbers\n",
                program_invocation_short_name);
        exit(2);
    }
    return value;
}

/* Removes `--name` from the arguments; true if it was there. */
static inline int flag(int *argc, char **argv, const char *name) {
    for (int i = 1; i < *argc; i++)
        if (!strcmp(argv[i], name)) {
            memmove(&argv[i], &argv[i + 1], (*argc - i) * sizeof *argv);
            --*argc;
            return 1;
        }
    return 0;
}

/* A parameter of the command line: a positional whole number, or, if its name begins with a dash,
 * a flag. */
struct parameter {
    const char *name;
    size_t otherwise, least, most, value;
};

#define NUMBER(name, otherwise, least, most) {name, otherwise, least, most, 0}
#define FLAG(name) {name, 0, 0, 0, 0}
#define PARALLEL_INIT FLAG("--parallel-init")

static inline void usage(const struct parameter *parameters, int count) {
    fprintf(stderr, "usage: %s", program_invocation_short_name);
    for (int i = 0; i < count; i++)
        if (*parameters[i].name == '-')
            fprintf(stderr, " [%s]", parameters[i].name);
        else
            fprintf(stderr, " [%s, %zu to %zu, otherwise %zu]", parameters[i].name,
                    parameters[i].least, parameters[i].most, parameters[i].otherwise);
    fputc('\n', stderr);
    exit(2);
}

/* Reads parameters: flags in any place, numbers in the order of the table. */
static inline void read_parameters(int argc, char **argv, struct parameter *parameters, int count) {
    for (struct parameter *p = parameters; p < parameters + count; p++)
        p->value = *p->name == '-' ? (size_t)flag(&argc, argv, p->name) : p->otherwise;
    int given = 1;
    for (struct parameter *p = parameters; p < parameters + count && given < argc; p++) {
        if (*p->name == '-')
            continue;
        char *end, *text = argv[given++];
        errno = 0;
        p->value = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || errno || p->value < p->least ||
            p->value > p->most)
            usage(parameters, count);
    }
    if (given < argc)
        usage(parameters, count);
}

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))
#define READ_PARAMETERS(parameters) read_parameters(argc, argv, parameters, LENGTH(parameters))

/* Number of rounds of the computation: one, or with WORKLOAD_UNTIL as many as until the file exists. */
static inline atomic_long *rounds_of_team(void) {
    static atomic_long rounds;
    if (!rounds)
        rounds = getenv("WORKLOAD_UNTIL") ? LONG_MAX : 1;
    return &rounds;
}

/* Does the computation have a round of this number? All threads of the team ask. */
static inline int has_round(long round) { return round < *rounds_of_team(); }

/* Called by the master. Others may have begun the next round, which is then the last one. */
static inline void round_ended(long round) {
    if (*rounds_of_team() == LONG_MAX && access(getenv("WORKLOAD_UNTIL"), F_OK) == 0)
        *rounds_of_team() = round + 2;
}

/* Checks a result of the computation; if wrong, one line on standard error and exit status 1. */
#define REQUIRE(holds, ...)                                                                        \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s: check failed: ", program_invocation_short_name);                  \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline void print_result(double checksum, double init_seconds, double compute_seconds) {
    REQUIRE(checksum - checksum == 0, "the checksum is not a number");
    printf("%s checksum %.12g init %.3f s compute %.3f s\n", program_invocation_short_name,
           checksum, init_seconds, compute_seconds);
}

static inline void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        die("out of memory");
    return memory;
}

/* xorshift64: the state is the random number, and never zero. */
static inline uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
    return (unsigned __int128)random_next(state) * bound >> 64;
}

/* The random number of an index, independent of the caller: the finaliser of splitmix64. */
static inline uint64_t random_at(uint64_t index) {
    index = (index + 1) * 0x9E3779B97F4A7C15u;
    index = (index ^ index >> 30) * 0xBF58476D1CE4E5B9u;
    index = (index ^ index >> 27) * 0x94D049BB133111EBu;
    return index ^ index >> 31;
}

/* A number from 0 up to but not including 1, from random bits. */
static inline double unit(uint64_t bits) { return (bits >> 11) * 0x1p-53; }

static inline uint64_t random_seed(uint64_t which) {
    return (which + 1) * 0x9E3779B97F4A7C15u;
}

/* First element of share `k` when `count` elements are divided into `n` shares. */
static inline size_t share_begin(size_t count, int k, int n) {
    return (unsigned __int128)count * k / n;
}

/* The shortest distance in a periodic box. */
static inline double short_way(double x, double box) {
    double turns = x / box;
    return x - box * (double)(int)(turns + (turns < 0 ? -0.5 : 0.5));
}

struct share {
    size_t first, end;
};

static inline struct share share_of(size_t count, int k, int n) {
    return (struct share){share_begin(count, k, n), share_begin(count, k + 1, n)};
}

/* The calling thread's share of `count` elements. */
static inline struct share my_share(size_t count) {
    return share_of(count, omp_get_thread_num(), omp_get_num_threads());
}

/* Calls `fill` for `count` elements: by the master for all, or by each thread for its share. */
static inline void fill_shares(size_t in_parallel, size_t count,
                               void (*fill)(size_t first, size_t end)) {
#pragma omp parallel if (in_parallel)
    {
        struct share mine = my_share(count);
        fill(mine.first, mine.end);
    }
}

/* The sum of every thread's `mine`, called by the whole OpenMP team. Adds in thread order, so that
 * the result of a given number of threads is the same to the last bit. */
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

#define PAUSE(objects) pause_for_inspection(objects, LENGTH(objects))

#endif
