// Forks while other threads end; children end at once.
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *end(void *argument) { return argument; }

int main(void) {
    for (int i = 0; i < 60; i++) {
        pthread_t threads[4];
        for (int k = 0; k < 4; k++) pthread_create(&threads[k], NULL, end, NULL);
        pid_t child = fork();
        if (!child) _exit(0);
        for (int k = 0; k < 4; k++) pthread_join(threads[k], NULL);
        waitpid(child, NULL, 0);
    }
    puts("done");
    return 0;
}
