/* Common part of all generated programs: options, objects, the loop that accesses one element of
 * each cache line, and output tables.
 *
 * PROGRAM [--size SCALE] [--threads T] [--passes P] [--objects FILE] [--counts FILE]
 *   --objects   addresses of objects' pieces, and kernel threads by number in the team
 *   --counts    accesses by unit and thread, in a program built with -DCOUNT */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE_BYTES 64
/* Lines of a unit, for which accesses are counted: a page, if the piece begins at a page boundary. */
#define UNIT_LINES 64

enum mode { LOAD, STORE, UPDATE, INITIALISE };

struct object {
    const char *name;
    /* All pieces have the same number of lines. */
    size_t pieces, piece_lines, lines;
    char **piece;
    /* Lines initialised, fetched and stored, by unit and thread. The last thread is the main thread
     * if it is not in the team. */
    uint32_t (*counts)[3];
};

static size_t scale = 1, team, passes;
static const char *objects_file, *counts_file;
static long *kernel_threads;

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *checked(void *memory) {
    if (!memory || memory == MAP_FAILED)
        die("out of memory");
    return memory;
}

static void *mapped(size_t bytes) {
    return checked(mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* First line of share `number` of `team` even shares, which differ by at most one line. */
static size_t share(size_t all, size_t number, size_t team) { return all * number / team; }

/* Like share(), with equally large shares; the last ones may be smaller or empty. */
static size_t full_share(size_t all, size_t number, size_t team) {
    size_t begin = (all + team - 1) / team * number;
    return begin < all ? begin : all;
}

/* Like share(), with shares proportional to weights that repeat. */
static size_t weighted_share(size_t all, size_t number, size_t team, const size_t *weights,
                             size_t count) {
    size_t before = 0, sum = 0;
    for (size_t i = 0; i < team; i++) {
        before += i < number ? weights[i % count] : 0;
        sum += weights[i % count];
    }
    return all * before / sum;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Rows of a grid of tiles: the largest divisor of the team's size up to its square root. */
static size_t tile_rows(size_t team) {
    size_t rows = 1;
    for (size_t i = 1; i * i <= team; i++)
        if (team % i == 0)
            rows = i;
    return rows;
}

/* The pseudo-random owner of a chunk. */
static size_t owner(uint64_t chunk, size_t team) {
    uint64_t x = (chunk + 1) * 0x9e3779b97f4a7c15;
    x = (x ^ x >> 31) * 0x94d049bb133111eb;
    return (x ^ x >> 29) % team;
}

#ifdef COUNT
static size_t units(const struct object *o) {
    return o->pieces * ((o->piece_lines + UNIT_LINES - 1) / UNIT_LINES);
}

static void count(struct object *o, size_t piece, size_t line, size_t me, enum mode mode) {
    size_t unit = piece * ((o->piece_lines + UNIT_LINES - 1) / UNIT_LINES) + line / UNIT_LINES;
    uint32_t *cell = o->counts[unit * (team + 1) + me];
    cell[0] += mode == INITIALISE;
    cell[1] += mode != INITIALISE;
    cell[2] += mode == STORE || mode == UPDATE;
}
#define COUNT_ACCESS(o, piece, line, me, mode) count(o, piece, line, me, mode)
#else
#define COUNT_ACCESS(o, piece, line, me, mode)
#endif

/* Accesses every `stride`-th line of [first, end): one load, one store, or one of each. */
#define SWEEP(NAME)                                                                                \
    static __attribute__((noinline)) void sweep_##NAME(size_t me, size_t first, size_t end,        \
                                                       size_t stride, enum mode mode) {            \
        struct object *o = &NAME##_object;                                                         \
        double sum = 0;                                                                            \
        while (first < end) {                                                                      \
            size_t piece = first / o->piece_lines, begin = piece * o->piece_lines;                 \
            size_t stop = smaller(begin + o->piece_lines, end), i = first;                         \
            char *base = o->piece[piece] + (first - begin) * LINE_BYTES;                           \
            volatile double *at = (volatile double *)base;                                         \
            if (mode == LOAD)                                                                      \
                for (; i < stop; i += stride, at += stride * 8) {                                  \
                    COUNT_ACCESS(o, piece, i - begin, me, mode);                                   \
                    sum += *at;                                                                    \
                }                                                                                  \
            else if (mode == UPDATE)                                                               \
                for (; i < stop; i += stride, at += stride * 8) {                                  \
                    COUNT_ACCESS(o, piece, i - begin, me, mode);                                   \
                    *at += 1;                                                                      \
                }                                                                                  \
            else                                                                                   \
                for (; i < stop; i += stride, at += stride * 8) {                                  \
                    COUNT_ACCESS(o, piece, i - begin, me, mode);                                   \
                    *at = 1;                                                                       \
                }                                                                                  \
            first = i;                                                                             \
        }                                                                                          \
        (void)me;                                                                                  \
        if (sum == -1)                                                                             \
            die("sums of ones are positive");                                                      \
    }

static void describe(struct object *o, size_t pieces, size_t piece_lines) {
    o->pieces = pieces;
    o->piece_lines = piece_lines;
    o->lines = pieces * piece_lines;
    o->piece = checked(calloc(pieces, sizeof *o->piece));
#ifdef COUNT
    o->counts = checked(calloc(units(o) * (team + 1), sizeof *o->counts));
#endif
}

static void register_thread(size_t me) { kernel_threads[me] = syscall(SYS_gettid); }

static size_t number(const char *text) {
    char *end;
    size_t value = strtoull(text, &end, 10);
    if (*end || !value)
        die("not a positive number");
    return value;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            die("an option has no value");
        if (!strcmp(argv[i], "--size"))
            scale = number(argv[i + 1]);
        else if (!strcmp(argv[i], "--threads"))
            team = number(argv[i + 1]);
        else if (!strcmp(argv[i], "--passes"))
            passes = number(argv[i + 1]);
        else if (!strcmp(argv[i], "--objects"))
            objects_file = argv[i + 1];
        else if (!strcmp(argv[i], "--counts"))
            counts_file = argv[i + 1];
        else
            die("unknown option");
    }
    kernel_threads = checked(calloc(team + 1, sizeof *kernel_threads));
    kernel_threads[team] = getpid();
}

/* Writes lines `thread NUMBER TID` and `piece OBJECT NUMBER ADDRESS`. */
static void write_objects(struct object *const *objects, size_t count) {
    FILE *file = objects_file ? checked(fopen(objects_file, "w")) : 0;
    for (size_t i = 0; file && i <= team; i++)
        fprintf(file, "thread %zu %ld\n", i, kernel_threads[i]);
    for (size_t i = 0; file && i < count; i++)
        for (size_t piece = 0; piece < objects[i]->pieces; piece++)
            fprintf(file, "piece %s %zu %" PRIuPTR "\n", objects[i]->name, piece,
                    (uintptr_t)objects[i]->piece[piece]);
    if (file && fclose(file))
        die("cannot write the objects");
}

/* Writes lines `OBJECT UNIT THREAD INITIALISED FETCHED STORED`, except where all counts are 0. */
static void write_counts(struct object *const *objects, size_t count) {
    FILE *file = counts_file ? checked(fopen(counts_file, "w")) : 0;
#ifdef COUNT
    for (size_t i = 0; file && i < count; i++)
        for (size_t cell = 0; cell < units(objects[i]) * (team + 1); cell++) {
            uint32_t *counts = objects[i]->counts[cell];
            if (counts[0] | counts[1] | counts[2])
                fprintf(file, "%s %zu %zu %u %u %u\n", objects[i]->name, cell / (team + 1),
                        cell % (team + 1), counts[0], counts[1], counts[2]);
        }
#else
    (void)objects;
    (void)count;
    if (file)
        die("accesses are counted in programs built with -DCOUNT");
#endif
    if (file && fclose(file))
        die("cannot write the counts");
}
