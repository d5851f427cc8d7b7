/* Allocates 60,000 objects, each at the end of another path of 24 calls. */
#include <stdio.h>
#include <stdlib.h>

static char *kept[60000];

static void left(unsigned path, int depth, int number);
static void right(unsigned path, int depth, int number);

__attribute__((noinline)) static void next(unsigned path, int depth, int number) {
    if (depth == 24)
        kept[number] = malloc(4500);
    else
        (path & 1 ? left : right)(path >> 1, depth + 1, number);
    __asm__ volatile("");
}

__attribute__((noinline)) static void left(unsigned path, int depth, int number) {
    next(path, depth, number);
    __asm__ volatile("");
}

__attribute__((noinline)) static void right(unsigned path, int depth, int number) {
    next(path, depth, number);
    __asm__ volatile("");
}

int main(void) {
    for (int i = 0; i < 60000; i++)
        next(i * 2654435761u, 0, i);
    for (int i = 0; i < 60000; i++)
        free(kept[i]);
    puts("done");
    return 0;
}
