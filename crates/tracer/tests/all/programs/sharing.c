/* Two threads that write neighbouring words, COUNT times each, between barriers. */
#include <pthread.h>
#include <stdlib.h>

static struct { volatile long word[8]; } shared __attribute__((aligned(128)));
static long count;
static pthread_barrier_t barrier;

static void *work(void *number) {
    for (int round = 0; round < 4; round++) {
        pthread_barrier_wait(&barrier);
        for (long i = 0; i < count; i++)
            shared.word[(long)number]++;
    }
    return 0;
}

int main(int argc, char **argv) {
    pthread_t other;
    count = argc > 1 ? atol(argv[1]) : 1000;
    pthread_barrier_init(&barrier, 0, 2);
    pthread_create(&other, 0, work, (void *)1);
    work(0);
    pthread_join(other, 0);
    return shared.word[0] + shared.word[1] == 8 * count ? 0 : 1;
}
