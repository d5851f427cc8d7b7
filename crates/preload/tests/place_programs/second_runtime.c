// A stand-in for a second OpenMP runtime: passes regions to the first runtime, and runs LLVM's regions in one thread.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) {
    void (*next)(void (*)(void *), void *, unsigned, unsigned) = dlsym(RTLD_NEXT, "GOMP_parallel");
    next(body, data, threads, flags);
}

void __kmpc_fork_call(void *place, int count, void (*body)(), ...) {
    int zero = 0;
    void *arguments[6];
    va_list list;
    (void)place;
    va_start(list, body);
    for (int at = 0; at < count && at < 6; at++) arguments[at] = va_arg(list, void *);
    va_end(list);
    body(&zero, &zero, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

// The returned task holds the sum of all arguments but the last, so that a test can check them.
void *__kmpc_omp_task_alloc(void *place, int thread, int flags, unsigned long task_bytes, unsigned long shared_bytes, int (*body)(int, void *)) {
    static long task;
    task = (place != 0) + thread + flags + (long)task_bytes + (long)shared_bytes;
    (void)body;
    return &task;
}
