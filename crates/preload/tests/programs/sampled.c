/* sampled MODE: programs in which sampling by signals is difficult. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile long sink, profiled, taken;

/* Clock of the thread's user time, counted by kernel ticks. */
static const clockid_t user_clock = -3;

/* Computes for this much user time. */
static void work(int milliseconds) {
    struct timespec now;
    clock_gettime(user_clock, &now);
    long end = now.tv_sec * 1000 + now.tv_nsec / 1000000 + milliseconds;
    do {
        for (int i = 0; i < 100000; i++)
            sink += i;
        clock_gettime(user_clock, &now);
    } while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < end);
}

static void *working(void *unused) {
    work(100);
    return unused;
}

static void *waiting(void *barrier) {
    pthread_barrier_wait(barrier);
    return NULL;
}

static void on_profile(int signal) {
    (void)signal;
    int error = errno;
    errno = 7;
    profiled++;
    errno = error;
}

static void on_any(int signal) {
    (void)signal;
    taken++;
}

static void block_all(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    if (!strcmp(mode, "threads")) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, working, NULL);
        work(100);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
    } else if (!strcmp(mode, "blocked")) {
        block_all();
        work(200);
    } else if (!strcmp(mode, "unblocked")) {
        sigset_t all;
        block_all();
        work(200);
        sigfillset(&all);
        pthread_sigmask(SIG_UNBLOCK, &all, NULL);
        work(50);
    } else if (!strcmp(mode, "sigwait")) {
        sigset_t all;
        int signal;
        block_all();
        work(100);
        sigfillset(&all);
        kill(getpid(), SIGUSR1);
        printf("%d\n", sigwait(&all, &signal) == 0 && signal == SIGUSR1);
        work(100);
        struct timespec soon = {0, 10000000};
        siginfo_t information;
        printf("%d %d\n", sigtimedwait(&all, &information, &soon), errno == EAGAIN);
        work(100);
        int file = signalfd(-1, &all, SFD_NONBLOCK);
        struct signalfd_siginfo read_one;
        printf("%zd\n", read(file, &read_one, sizeof read_one));
    } else if (!strcmp(mode, "defaults")) {
        /* Sets all signals to their defaults, as daemons do. */
        for (int signal = 1; signal < NSIG; signal++) {
            struct sigaction old, action = {.sa_handler = SIG_DFL};
            if (sigaction(signal, NULL, &old) == 0 && old.sa_handler != SIG_DFL)
                printf("%d has a handler\n", signal);
            sigaction(signal, &action, NULL);
            sigaction(signal, &action, &old);
        }
        work(100);
        for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
            if (signal(number, SIG_IGN) != SIG_DFL || signal(number, SIG_DFL) != SIG_IGN)
                printf("%d is not what was set\n", number);
        work(100);
    } else if (!strcmp(mode, "takes")) {
        work(50);
        struct sigaction action = {.sa_handler = on_any, .sa_flags = SA_RESTART};
        for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
            sigaction(signal, &action, NULL);
        long before = taken;
        work(200);
        printf("%ld\n", taken - before);
        raise(SIGRTMAX - 1);
        printf("%ld\n", taken - before);
    } else if (!strcmp(mode, "profiler")) {
        stack_t stack = {.ss_sp = malloc(SIGSTKSZ), .ss_size = SIGSTKSZ};
        sigaltstack(&stack, NULL);
        struct sigaction action = {.sa_handler = on_profile, .sa_flags = SA_RESTART | SA_ONSTACK};
        sigaction(SIGPROF, &action, NULL);
        struct itimerval timer = {{0, 4000}, {0, 4000}};
        setitimer(ITIMER_PROF, &timer, NULL);
        errno = 0;
        work(200);
        printf("%d %d\n", profiled > 0, errno);
    } else if (!strcmp(mode, "sleeps")) {
        int interrupted = 0;
        for (int i = 0; i < 20; i++) {
            struct timespec little = {0, 5000000};
            work(7);
            if (nanosleep(&little, NULL) != 0)
                interrupted++;
        }
        printf("%d\n", interrupted);
    } else if (!strcmp(mode, "many")) {
        int number = atoi(arguments[2]);
        pthread_t *threads = calloc(number, sizeof *threads);
        pthread_barrier_t barrier;
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 64 << 10);
        pthread_barrier_init(&barrier, NULL, number + 1);
        for (int i = 0; i < number; i++)
            if (pthread_create(&threads[i], &small, waiting, &barrier) != 0)
                return 3;
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < number; i++)
            pthread_join(threads[i], NULL);
        work(50);
    } else if (!strcmp(mode, "forks")) {
        work(50);
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            if (child == 0) {
                work(50);
                _exit(0);
            }
            waitpid(child, NULL, 0);
        }
        /* The thread is sampled until exec replaces the program. */
        work(50);
        execl(arguments[0], arguments[0], "threads", NULL);
        return 4;
    }
    puts("done");
    return 0;
}
