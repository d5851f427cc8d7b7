// Common part of these programs: allocates and fills objects, and shows their addresses and memory policies, as lines
// `OBJECT name address size` followed by /proc/self/maps and /proc/self/numa_maps.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void object(const char *name, void *address, size_t size) {
    printf("OBJECT %s %zu %zu\n", name, (size_t)address, size);
}

// The compiler must not remove the stores, although the memory is freed soon.
static inline void *fill(void *memory, size_t size) {
    memset(memory, 1, size);
    __asm__ volatile("" : : "r"(memory) : "memory");
    return memory;
}

static inline void show(const char *path) {
    char buffer[4096];
    size_t length;
    FILE *file = fopen(path, "r");
    printf("FILE %s\n", path);
    while ((length = fread(buffer, 1, sizeof buffer, file)) > 0)
        fwrite(buffer, 1, length, stdout);
    fclose(file);
}

static inline void show_mappings(void) {
    show("/proc/self/maps");
    show("/proc/self/numa_maps");
}

static void *(*volatile allocate)(size_t) = malloc;
__attribute__((noinline)) void *allocate_a(size_t size) { void *p = allocate(size); __asm__ volatile("" ::: "memory"); return p; }
