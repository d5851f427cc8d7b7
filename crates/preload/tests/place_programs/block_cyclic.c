// Allocates 1 GiB, touches every page once, and prints the milliseconds of both steps. With an argument N, the first N
// pieces of 64 KiB get alternating memory policies before they are touched.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

__attribute__((noinline)) static char *allocate(size_t size) {
    char *memory = malloc(size);
    __asm__ volatile("" : : : "memory");
    return memory;
}

int main(int argc, char **argv) {
    size_t size = 1ul << 30, piece = 1 << 16;
    unsigned long node = 1;
    double start = now();
    char *memory = allocate(size);
    for (long k = 0, most = argc > 1 ? atol(argv[1]) : 0; k < most && k < (long)(size / piece); k++)
        syscall(SYS_mbind, ((size_t)memory & -4096) + k * piece, piece, k % 2 ? 3 : 1, &node, 64, 0);
    double allocated = now();
    for (size_t at = 0; at < size; at += 4096) memory[at] = 1;
    double touched = now();
    printf("%.3f %.3f\n", allocated - start, touched - allocated);
    fflush(stdout);
    _exit(0);
}
