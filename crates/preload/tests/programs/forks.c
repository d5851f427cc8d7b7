/* Forks a child that works, a grandchild and a vfork child, and continues in the parent. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int stop;

static void work(size_t bytes) {
    for (int i = 0; i < 500; i++) {
        void *memory = malloc(bytes);
        memset(memory, 1, 100);
        free(memory);
    }
}

static void in_handler(void) { work(55555); }

static void *background(void *unused) {
    while (!stop)
        work(20000);
    return unused;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, background, NULL);
    pthread_atfork(NULL, NULL, in_handler);
    work(30000);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            work(40000);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                work(50000);
                exit(3);
            }
            int status;
            waitpid(grandchild, &status, 0);
            _exit(WEXITSTATUS(status) + 1);
        }
        int status;
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 4)
            printf("child says %d\n", status);
    }
    if (vfork() == 0)
        _exit(0);
    /* A raw fork, which no hook of the C library sees. */
    pid_t child = syscall(SYS_fork);
    if (child == 0) {
        work(60000);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    wait(NULL);
    work(30000);
    stop = 1;
    pthread_join(thread, NULL);
    puts("done");
    return 0;
}
