/* Two functions with equal frames call one wrapper, so the call stacks differ only above the wrapper. */
#include <stdio.h>
#include <stdlib.h>
#include "nearpage.h"

#define OUTLINE __attribute__((noinline, noclone))
OUTLINE static void *wrapper(size_t bytes) { void *memory = malloc(bytes); __asm__ volatile("" : : "r"(memory)); return memory; }
OUTLINE static void *first(void) { void *memory = wrapper(11000); __asm__ volatile("nop" : : "r"(memory)); return memory; }
OUTLINE static void *second(void) { void *memory = wrapper(22000); __asm__ volatile("nop" : : "r"(memory)); return memory; }

int main(void) {
    nearpage_begin();
    for (int i = 0; i < 1000; i++) {
        free(first());
        free(second());
    }
    nearpage_end();
    puts("done");
    return 0;
}
