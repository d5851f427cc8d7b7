// Shows the memory policies of threads, of memory, and of programs that it starts, as lines `POLICY name mode` with the
// kernel's mode numbers. With `policy NAME`, it shows its own policy under this name and exits.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *other;
static __thread int in_storage;
static void *(*volatile allocate)(size_t) = malloc;

static void thread_policy(const char *name) {
    int mode = -1;
    syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0);
    printf("POLICY %s %d\n", name, mode);
}

static void memory_policy(const char *name, const void *address) {
    const int of_address = 2;
    int mode = -1;
    syscall(SYS_get_mempolicy, &mode, NULL, 0, address, of_address);
    printf("POLICY %s %d\n", name, mode);
}

static void *thread(void *prefix) {
    char name[64];
    int local;
    sprintf(name, "%s_thread", (char *)prefix);
    thread_policy(name);
    sprintf(name, "%s_stack", (char *)prefix);
    memory_policy(name, &local);
    sprintf(name, "%s_storage", (char *)prefix);
    memory_policy(name, &in_storage);
    return NULL;
}

static void run_thread(const char *prefix, const pthread_attr_t *attributes) {
    pthread_t id;
    pthread_create(&id, attributes, thread, (void *)prefix);
    pthread_join(id, NULL);
}

static void objects(void) {
    int local;
    memory_policy("main_stack", &local);
    memory_policy("small", allocate(100));
    memory_policy("left", (char *)allocate(9 << 20) + (4 << 20));
    memory_policy("placed", (char *)allocate(1 << 20) + (1 << 19));
    char *again = allocate(9 << 20);
    free(again);
    memory_policy("unnamed", mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void *set_own(void *unused) {
    const int preferred = 1;
    syscall(SYS_set_mempolicy, preferred, NULL, 0);
    free(allocate(1 << 20));
    thread_policy("own");
    run_thread("of_own", NULL);
    return unused;
}

static void threads(void) {
    run_thread("plain", NULL);
    // Uses the previous thread's stack, which the C library has kept.
    run_thread("cached", NULL);
    const size_t size = 1 << 20, given = 1 << 18;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, memory + given, given);
    run_thread("given", &attributes);
    memory_policy("below_given", memory + given - 1);
    memory_policy("above_given", memory + 2 * given);
    pthread_t id;
    pthread_create(&id, NULL, set_own, NULL);
    pthread_join(id, NULL);
}

static void finish(pid_t pid) {
    int status;
    waitpid(pid, &status, 0);
    if (status) printf("POLICY failed %d\n", status);
}

static void starts(void) {
    char command[4096];
    pid_t pid;
    posix_spawn(&pid, other, NULL, NULL, (char *[]){(char *)other, "policy", "posix_spawn", NULL}, environ);
    finish(pid);
    posix_spawnp(&pid, other, NULL, NULL, (char *[]){(char *)other, "policy", "posix_spawnp", NULL}, environ);
    finish(pid);
    snprintf(command, sizeof command, "'%s' policy system", other);
    if (system(command)) puts("POLICY failed 1");
    snprintf(command, sizeof command, "'%s' policy popen", other);
    FILE *pipe = popen(command, "r");
    while (fgets(command, sizeof command, pipe)) fputs(command, stdout);
    pclose(pipe);
    if (!(pid = fork())) {
        thread_policy("forked");
        fflush(stdout);
        execv(other, (char *[]){(char *)other, "policy", "fork_execv", NULL});
        _exit(127);
    }
    finish(pid);
    if (!(pid = vfork())) {
        execl(other, other, "policy", "vfork_execl", (char *)NULL);
        _exit(127);
    }
    finish(pid);
    if (!(pid = vfork())) {
        execl("/no/such/program", "no", (char *)NULL);
        execve(other, (char *[]){(char *)other, "policy", "second_try", NULL}, environ);
        _exit(127);
    }
    finish(pid);
    free(allocate(1 << 20));
    thread_policy("launcher");
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (argc > 2) other = argv[2];
    if (!strcmp(what, "policy")) {
        thread_policy(argv[2]);
    } else if (!strcmp(what, "objects")) {
        thread_policy("main");
        objects();
    } else if (!strcmp(what, "threads")) {
        threads();
        thread_policy("creator");
    } else if (!strcmp(what, "starts")) {
        // The started programs don't load the library, so only the launching process can set their policies.
        unsetenv("LD_PRELOAD");
        starts();
    } else if (!strcmp(what, "bare")) {
        syscall(SYS_execve, other, (char *[]){(char *)other, "policy", "bare", NULL}, environ);
    } else if (!strcmp(what, "failing")) {
        execl("/no/such/program", "no", (char *)NULL);
        free(allocate(1 << 20));
        thread_policy("failed_exec");
    } else if (!strcmp(what, "chosen")) {
        const int preferred = 1;
        syscall(SYS_set_mempolicy, preferred, NULL, 0);
        run_thread("chosen", NULL);
        thread_policy("creator");
    } else if (!strcmp(what, "later")) {
        thread_policy("alone");
        objects();
        char *filled = allocate(4000 * 1000);
        memset(filled, 1, 4000 * 1000);
        for (int i = 0; i < 3000; i++) memset(allocate(1000), 1, 1000);
        pid_t pid = fork();
        if (!pid) {
            thread_policy("alone_child");
            run_thread("child", NULL);
            return 0;
        }
        finish(pid);
        thread_policy("still_alone");
        run_thread("second", NULL);
        thread_policy("creator");
        if (!(pid = fork())) {
            thread_policy("child_of_many");
            run_thread("own_second", NULL);
            return 0;
        }
        finish(pid);
        for (int i = 0; i < 4000 * 1000; i++)
            if (filled[i] != 1) printf("POLICY wrong %d\n", i);
    }
    return 0;
}
