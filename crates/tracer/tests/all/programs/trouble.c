/* Difficult cases for a tracer: more threads than cores, threads that end and start again, signals that interrupt
 * sleep, pipes between threads, forks, exec, mappings that are created and removed, and exit while other threads run.
 * (QEMU 7.2 itself does not survive pthread_cancel.) */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 12 };
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static long turn, total;
static int ends[2];
static volatile int flag;
static int started;

static void *take_turns(void *number) {
    for (int round = 0; round < 20; round++) {
        pthread_mutex_lock(&mutex);
        while (turn % THREADS != (long)number)
            pthread_cond_wait(&condition, &mutex);
        turn++, total++;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
    }
    return 0;
}

static void *spin(void *nothing) {
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    while (!flag)
        ;
    return nothing;
}

static void *forever(void *nothing) {
    __atomic_add_fetch(&started, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return nothing;
}

static void *reader(void *nothing) {
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        abort();
    return nothing;
}

static void *mapper(void *nothing) {
    for (int i = 0; i < 30; i++) {
        char *page = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(page, i, 1 << 16);
        munmap(page, 1 << 16);
    }
    return nothing;
}

static void alarmed(int number) { flag = number; }

static void all(pthread_t *threads, void *(*start)(void *)) {
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, start, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
}

int main(void) {
    pthread_t threads[THREADS], other;
    all(threads, take_turns);
    all(threads, mapper);

    pthread_create(&other, 0, spin, 0);
    usleep(1000);
    flag = 1;
    pthread_join(other, 0);

    if (pipe(ends))
        return 2;
    pthread_create(&other, 0, reader, 0);
    usleep(1000);
    if (write(ends[1], "x", 1) != 1)
        return 3;
    pthread_join(other, 0);

    flag = 0;
    signal(SIGALRM, alarmed);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 20000}}, 0);
    pause();
    if (flag != SIGALRM)
        return 4;

    pthread_create(&other, 0, mapper, 0);
    siginfo_t ended;
    pid_t child = fork();
    if (child == 0)
        _exit(total == 20 * THREADS ? 0 : 1);
    if (waitid(P_PID, child, &ended, WEXITED) || ended.si_status)
        return 5;
    pthread_join(other, 0);
    if (system("exit 7") != 7 << 8)
        return 6;

    flag = started = 0;
    pthread_create(&other, 0, spin, 0);
    pthread_create(&other, 0, forever, 0);
    while (__atomic_load_n(&started, __ATOMIC_SEQ_CST) < 2)
        usleep(1000);
    puts("done");
    exit(0);
}
