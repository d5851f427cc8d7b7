/* threads NUMBER: short threads, while two other threads allocate all the time. Some of the short threads end by
 * pthread_exit or are cancelled. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <unistd.h>

static volatile int stop;
static pthread_key_t key;

static void in_destructor(void *memory) { free(memory); free(malloc(8000)); }

static void *steady(void *unused) {
    // Bounded, so that the log's size doesn't depend on how long the others take.
    for (long round = 0; !stop && round < 1000000; round++) {
        free(malloc(5000));
        free(malloc(50));
    }
    while (!stop)
        usleep(1000);
    return unused;
}

static void *brief(void *argument) {
    long index = (long)argument;
    pthread_setspecific(key, malloc(6000));
    char *memory = malloc(100);
    memset(memory, 1, 100);
    free(memory);
    if (index % 3 == 1)
        pthread_exit(argument);
    if (index % 1000 == 2)
        for (;;)
            pause();
    return argument;
}

static int brief_c11(void *argument) { return (int)(long)brief(argument); }

int main(int argc, char **argv) {
    long number = argc > 1 ? atol(argv[1]) : 1000;
    pthread_key_create(&key, in_destructor);
    pthread_t busy[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&busy[i], NULL, steady, NULL);
    for (long i = 0; i < number; i += 10) {
        pthread_t batch[9];
        for (long j = 0; j < 9; j++)
            if (pthread_create(&batch[j], NULL, brief, (void *)(i + j)))
                return puts("no thread"), 1;
        thrd_t other;
        if (thrd_create(&other, brief_c11, (void *)(i - i % 3)) != thrd_success)
            return puts("no C11 thread"), 1;
        for (long j = 0; j < 9; j++) {
            void *result;
            if ((i + j) % 3 != 1 && (i + j) % 1000 == 2)
                pthread_cancel(batch[j]);
            pthread_join(batch[j], &result);
            if (result != (void *)(i + j) && result != PTHREAD_CANCELED)
                puts("wrong result");
        }
        int result;
        thrd_join(other, &result);
        if (result != i - i % 3)
            puts("wrong C11 result");
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(busy[i], NULL);
    puts("done");
    return 0;
}
