/* tracer_hits ROUNDS: two threads each access 16 KiB of their own, so that nearly every access hits the cache. */
#include <pthread.h>
#include <stdlib.h>

enum { WORDS = 2048 };
static long rounds;
static long arrays[2][WORDS] __attribute__((aligned(4096)));

static void *work(void *which) {
    volatile long *array = arrays[(long)which];
    for (long round = 0; round < rounds; round++)
        for (int i = 0; i + 4 <= WORDS; i += 4) {
            array[i] = array[i + 1] + array[i + 2];
            array[i + 3] += round;
        }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t other;
    rounds = argc > 1 ? atol(argv[1]) : 1000;
    pthread_create(&other, 0, work, (void *)1);
    work(0);
    return pthread_join(other, 0);
}
