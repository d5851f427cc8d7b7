/* An allocator as a library. Each object begins at a mapping's start, so memory before an object can't be read. The
 * library calls the exported mmap, and has malloc_usable_size only if built with TELLS_SIZE. */
#define _GNU_SOURCE
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define BINS 20
struct object { struct object *next; };
static struct object *bins[BINS];
static volatile int lock;

/* Every object has 4 KiB << bin bytes; its bin is kept in a table by address. */
static unsigned char bin_of_page[1 << 24];

static size_t page(void *object) { return (uintptr_t)object >> 12 & ((1 << 24) - 1); }

void *malloc(size_t bytes) {
    int bin = 0;
    while (((size_t)4096 << bin) < bytes)
        if (++bin == BINS)
            return NULL;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    struct object *object = bins[bin];
    if (object)
        bins[bin] = object->next;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
    if (!object) {
        /* Leaves an inaccessible page on both sides. */
        size_t size = (size_t)4096 << bin;
        char *map = mmap(NULL, size + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED || mprotect(map + 4096, size, PROT_READ | PROT_WRITE))
            return NULL;
        object = (struct object *)(map + 4096);
        bin_of_page[page(object)] = bin;
    }
    return object;
}

void free(void *memory) {
    struct object *object = memory;
    if (!object)
        return;
    int bin = bin_of_page[page(object)];
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    object->next = bins[bin];
    bins[bin] = object;
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

void *calloc(size_t count, size_t bytes) {
    void *memory = malloc(count * bytes);
    return memory ? memset(memory, 0, count * bytes) : NULL;
}

void *realloc(void *old, size_t bytes) {
    void *memory = malloc(bytes);
    if (old) {
        size_t before = (size_t)4096 << bin_of_page[page(old)];
        memcpy(memory, old, before < bytes ? before : bytes);
        free(old);
    }
    return memory;
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    (void)alignment;
    *out = malloc(bytes);
    return *out ? 0 : 12;
}

#ifdef TELLS_SIZE
size_t malloc_usable_size(void *memory) { return memory ? (size_t)4096 << bin_of_page[page(memory)] : 0; }
#endif
