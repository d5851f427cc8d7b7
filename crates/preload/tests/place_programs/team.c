// An OpenMP team that shows its threads' allowed CPUs (`MEMBER number CPUs firstCPU`), and the address of the threads'
// start routine within its library (`ROUTINE address`).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument) {
    int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    Dl_info information;
    if (dladdr((void *)routine, &information))
        printf("ROUTINE %zu\n", (size_t)routine - (size_t)information.dli_fbase);
    return next(thread, attributes, routine, argument);
}

int main(void) {
#pragma omp parallel
    {
        cpu_set_t cpus;
        sched_getaffinity(0, sizeof cpus, &cpus);
        int first = 0;
        while (first < CPU_SETSIZE && !CPU_ISSET(first, &cpus)) first++;
#pragma omp critical
        printf("MEMBER %d %d %d\n", omp_get_thread_num(), CPU_COUNT(&cpus), first);
    }
    return 0;
}
