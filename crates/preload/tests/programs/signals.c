/* A timer signal interrupts a thread that allocates. Its handler allocates, too, on an alternate stack. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static volatile int inside, handled;

/* The handler must not call malloc while malloc runs, but it may interrupt nearpage's own code. */
static void handler(int number) {
    (void)number;
    handled++;
    if (inside)
        return;
    for (size_t bytes = 16; bytes < 100000; bytes *= 3) {
        char *memory = malloc(bytes);
        memset(memory, 2, bytes);
        free(memory);
    }
}

/* mmap is async-signal-safe in practice, so the signal may interrupt nearpage's hook of mmap anywhere. */
#include <sys/mman.h>

int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 17), .ss_size = 1 << 17};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &timer, NULL);
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        void *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(map, 8192);
        inside = 1;
        free(malloc(9000));
        free(malloc(30));
        inside = 0;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (handled < 300 && now.tv_sec - begin.tv_sec < 20);
    puts(handled > 0 ? "done" : "no signal came");
    return 0;
}
