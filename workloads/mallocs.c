/* mallocs [--rate PAIRS_PER_SECOND | --filler STEPS] [THREADS [PAIRS_PER_THREAD]]
 *
 * Every thread allocates, writes one byte and frees: small sizes, 16 to 143 bytes, at full
 * speed. With --rate, arithmetic between the pairs slows all threads to a total of about this
 * many pairs a second. The number of arithmetic steps is measured at start and printed: --filler
 * with this number repeats exactly the same work, which a comparison of two runs
 * needs.
 *
 * Access pattern, by construction: each thread touches only what it allocated itself. */
#include "workload.h"
#include <pthread.h>
#include <time.h>

static uint64_t pairs_per_thread, filler_steps;
static pthread_barrier_t barrier;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Uses registers only; the compiler can't remove it. */
static inline uint64_t filler(uint64_t value, uint64_t steps) {
    for (uint64_t i = 0; i < steps; i++) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        __asm__ volatile("" : "+r"(value));
    }
    return value;
}

static double pair_seconds_without_filler(void) {
    uint64_t pairs = 1000000;
    double begin = now();
    for (uint64_t i = 0; i < pairs; i++) {
        volatile char *memory = malloc(16 + i % 128);
        memory[0] = 1;
        free((void *)memory);
    }
    return (now() - begin) / pairs;
}

static uint64_t steps_for_rate(double rate, int threads) {
    double target = threads / rate - pair_seconds_without_filler();
    uint64_t steps = 20000000;
    double begin = now();
    filler(1, steps);
    double step = (now() - begin) / steps;
    return target > 0 ? target / step : 0;
}

static void *run(void *index) {
    uint64_t value = (uintptr_t)index;
    pthread_barrier_wait(&barrier);
    for (uint64_t i = 0; i < pairs_per_thread; i++) {
        volatile char *memory = malloc(16 + i % 128);
        if (!memory)
            die("out of memory");
        memory[0] = (char)i;
        value += memory[0];
        free((void *)memory);
        value = filler(value, filler_steps);
    }
    return (void *)value;
}

/* Removes `--name NUMBER` from the arguments and returns the number; zero if absent. */
static double option(int *argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < *argc; i++)
        if (!strcmp(argv[i], name)) {
            double value = argument(*argc, argv, i + 1, 0);
            flag(argc, argv, name);
            memmove(&argv[i], &argv[i + 1], (*argc - i) * sizeof *argv);
            --*argc;
            return value;
        }
    return 0;
}

int main(int argc, char **argv) {
    double rate = option(&argc, argv, "--rate");
    filler_steps = option(&argc, argv, "--filler");
    int threads = argument(argc, argv, 1, omp_get_max_threads());
    pairs_per_thread = argument(argc, argv, 2, 50000000);
    if (rate > 0)
        filler_steps = steps_for_rate(rate, threads);

    pthread_barrier_init(&barrier, NULL, threads + 1);
    pthread_t *handles = allocate(threads * sizeof *handles);
    for (int t = 0; t < threads; t++)
        if (pthread_create(&handles[t], NULL, run, (void *)(uintptr_t)t))
            die("cannot start a thread");
    pthread_barrier_wait(&barrier);
    double begin = now();
    uint64_t checksum = 0;
    for (int t = 0; t < threads; t++) {
        void *value;
        pthread_join(handles[t], &value);
        checksum += (uintptr_t)value;
    }
    double seconds = now() - begin;
    free(handles);
    printf("mallocs checksum %lx filler %lu pairs/s %.0f ns/pair %.2f compute %.3f s\n",
           (unsigned long)checksum, (unsigned long)filler_steps,
           threads * pairs_per_thread / seconds, seconds / pairs_per_thread * 1e9, seconds);
}
