/* preload_overhead CASE THREADS PAIRS FILLER: prints the CPU time of a pair of malloc and free.
 *
 *   small   16 to 143 bytes
 *   large   5000 bytes
 *   grow    realloc from 16 to 1616 bytes in ten steps, then free; ten calls count as one
 *
 * FILLER arithmetic steps follow each pair. With "rate:N" as FILLER, the program only measures and prints the number
 * of steps with which all threads together make N pairs per second. CPU time is measured instead of elapsed time,
 * because other work on the machine disturbs it less. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long pairs, filler;
static char what;
static pthread_barrier_t barrier;

static double cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void pair(long i) {
    volatile char *memory;
    if (what == 's' || what == 'l') {
        memory = malloc(what == 's' ? 16 + i % 128 : 5000);
        memory[0] = 1;
        free((void *)memory);
        return;
    }
    memory = NULL;
    for (size_t bytes = 16; bytes <= 1616; bytes += 160) {
        memory = realloc((void *)memory, bytes);
        memory[0] = 1;
    }
    free((void *)memory);
}

static void work(long count) {
    for (long i = 0; i < count; i++) {
        pair(i);
        uint64_t value = i;
        for (long step = 0; step < filler; step++) {
            value = value * 6364136223846793005u + 1442695040888963407u;
            __asm__ volatile("" : "+r"(value));
        }
    }
}

static void *run(void *result) {
    work(pairs / 10);
    pthread_barrier_wait(&barrier);
    double begin = cpu_ns();
    work(pairs);
    *(double *)result = (cpu_ns() - begin) / pairs;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return fprintf(stderr, "usage: preload_overhead small|large|grow THREADS PAIRS FILLER|rate:N\n"), 2;
    what = argv[1][0];
    int threads = atoi(argv[2]);
    pairs = atol(argv[3]);
    if (!strncmp(argv[4], "rate:", 5)) {
        double begin = cpu_ns();
        work(pairs);
        double without = (cpu_ns() - begin) / pairs;
        filler = 1000;
        begin = cpu_ns();
        work(pairs / 100);
        double step = ((cpu_ns() - begin) / (pairs / 100) - without) / filler;
        double wanted = threads / atof(argv[4] + 5) * 1e9 - without;
        printf("%ld\n", wanted > 0 ? (long)(wanted / step) : 0);
        return 0;
    }
    filler = atol(argv[4]);
    pthread_t handles[64];
    double results[64], sum = 0;
    if (threads < 1 || threads > 64)
        return 2;
    pthread_barrier_init(&barrier, NULL, threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&handles[i], NULL, run, &results[i]))
            return 1;
    for (int i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        sum += results[i];
    }
    printf("%.2f\n", sum / threads);
    return 0;
}
