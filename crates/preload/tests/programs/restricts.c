/* restricts HOW: allows itself only system calls that malloc, its threads and its output need. Others kill it. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static volatile int ready, go;

static void churn(void) {
    for (int round = 0; round < 40000; round++) {
        char *memory = malloc(round % 2 ? 8000 : 300);
        if (!memory)
            _exit(3);
        memory[0] = round;
        if (!(memory = realloc(memory, 9000)))
            _exit(3);
        if (round % 4)
            free(memory);
    }
}

static void *wait_and_churn(void *unused) {
    /* Makes the C library create the thread's arena before the filter. */
    churn();
    ready = 1;
    while (!go)
        ;
    churn();
    return unused;
}

int main(int argc, char **argv) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(exit), ALLOW(exit_group), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap),
        ALLOW(mprotect), ALLOW(futex), ALLOW(rt_sigreturn), ALLOW(rt_sigprocmask), ALLOW(clock_gettime),
        /* The C library calls these when a thread ends. */
        ALLOW(madvise), ALLOW(set_robust_list), ALLOW(rseq),
        /* Some servers give up their rights last. */
        ALLOW(setuid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    const char *how = argc > 1 ? argv[1] : "";
    pthread_t thread;
    churn();
    if (pthread_create(&thread, NULL, wait_and_churn, NULL))
        return 4;
    while (!ready)
        ;
    /* Libraries probe the kernel's support like this before they set a filter. */
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL);
    prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(how, "prctl") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 77;
    if (!strcmp(how, "seccomp") && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        return 77;
    go = 1;
    churn();
    pthread_join(thread, NULL);
    /* Fails unless root does it, which is as good here. */
    syscall(SYS_setuid, 65534);
    if (write(1, "done\n", 5) != 5)
        return 5;
    _exit(0);
}
