/* busy COUNT BYTES THREADS: each thread allocates and frees COUNT objects, too briefly for samples. Before that, the
 * main thread allocates 10,000 rows that stay, and allocates and frees 3000 objects of 1 MiB. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long count;
static size_t bytes;

static void *work(void *unused) {
    for (long i = 0; i < count; i++) {
        volatile char *object = malloc(bytes);
        object[0] = 1;
        free((void *)object);
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    count = atol(argv[1]);
    bytes = atol(argv[2]);
    int threads = atoi(argv[3]);
    static char *rows[10000];
    for (int i = 0; i < 10000; i++)
        (rows[i] = malloc(6000))[0] = 1;
    for (int i = 0; i < 3000; i++) {
        volatile char *object = malloc(1 << 20);
        object[0] = 1;
        free((void *)object);
    }
    pthread_t handles[16];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&handles[i], NULL, work, NULL))
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(handles[i], NULL);
    for (int i = 0; i < 10000; i++)
        free(rows[i]);
    puts("done");
    return 0;
}
