// Fills objects alone, then enters parallel regions or starts a thread, by the arguments. Shows the objects.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shown.h"

#define WHOLE_BYTES (8 << 20)

char table[1 << 20] __attribute__((aligned(4096)));
static char *whole;
static long sum;

// Entered by GOMP_parallel.
__attribute__((noinline)) static void columns(void) {
#pragma omp parallel
    {
#pragma omp for reduction(+ : sum)
        for (long at = 0; at < WHOLE_BYTES; at++) sum += whole[at];
    }
}

// Entered by GOMP_parallel_loop_nonmonotonic_dynamic, which has arguments on the stack.
__attribute__((noinline)) static void rows(long step) {
#pragma omp parallel for schedule(dynamic, 1000) reduction(+ : sum)
    for (long at = 0; at < WHOLE_BYTES; at += step) sum += whole[at];
}

// Calls GOMP_task, which has arguments on the stack; the next function calls GOMP_taskloop.
__attribute__((noinline)) static void tasks(long first) {
#pragma omp task
    for (long at = first; at < WHOLE_BYTES; at++) sum += whole[at];
#pragma omp taskwait
}

__attribute__((noinline)) static void taskloop(long step) {
#pragma omp taskloop
    for (long at = 0; at < WHOLE_BYTES; at += step) sum += whole[at];
}

static void *reader(void *unused) {
    for (long at = 0; at < WHOLE_BYTES; at++) sum += whole[at];
    return unused;
}

// Allocates and frees objects while a phase begins.
static volatile int is_over;
static void *churn(void *unused) {
    while (!is_over) free(fill(allocate_a(20000), 20000));
    fill(allocate_a(20000), 20000);
    return unused;
}

#ifdef LLVM
void __kmpc_fork_call(void *place, int count, void (*body)(), ...);

// Has the arguments of a parallel region that LLVM outlines.
__attribute__((noinline)) void outlined(int *thread, int *bound, long *a, long *b, long *c, long *d, long *e, long *f) {
    sum += *thread + *bound + *a + 2 * *b + 3 * *c + 4 * *d + 5 * *e + 6 * *f;
}

void *__kmpc_omp_task_alloc(void *place, int thread, int flags, size_t task_bytes, size_t shared_bytes, int (*body)(int, void *));

int task_entry(int thread, void *task) {
    sum += thread + *(long *)task;
    return 0;
}
#endif

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    whole = fill(allocate_a(WHOLE_BYTES), WHOLE_BYTES);
    free(fill(allocate_a(1 << 20), 1 << 20));
    fill(table, sizeof table);
    object("whole", whole, WHOLE_BYTES);
    object("table", table, sizeof table);
    for (int at = 1; at < argc; at++) {
        if (!strcmp(argv[at], "columns")) columns();
        if (!strcmp(argv[at], "rows")) rows(1);
        if (!strcmp(argv[at], "tasks")) tasks(0);
        if (!strcmp(argv[at], "taskloop")) taskloop(1);
        if (!strcmp(argv[at], "fork") && fork()) {
            wait(NULL);
            return 0;
        }
        if (!strcmp(argv[at], "thread")) {
            pthread_t thread;
            pthread_create(&thread, NULL, reader, NULL);
            pthread_join(thread, NULL);
        }
        if (!strcmp(argv[at], "churn")) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, NULL);
            columns();
            is_over = 1;
            for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        }
#ifdef LLVM
        long a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
        if (!strcmp(argv[at], "llvm")) __kmpc_fork_call(NULL, 6, outlined, &a, &b, &c, &d, &e, &f);
        if (!strcmp(argv[at], "llvm_task")) task_entry(3, __kmpc_omp_task_alloc(NULL, 1, 2, 3, 4, task_entry));
#endif
    }
    printf("SUM %ld\n", sum);
    object("after", fill(allocate_a(1 << 20), 1 << 20), 1 << 20);
    show_mappings();
    return 0;
}
