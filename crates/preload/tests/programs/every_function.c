/* Calls each allocating function once, with a distinct size, and prints errors. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(void *memory, size_t bytes, size_t alignment, const char *name) {
    if (!memory || (uintptr_t)memory % alignment || malloc_usable_size(memory) < bytes)
        printf("%s is wrong\n", name);
    else
        memset(memory, 1, bytes);
}

int main(void) {
    void *kept[16];
    int n = 0;
    check(kept[n++] = malloc(10001), 10001, 16, "malloc");
    char *zeroed = kept[n++] = calloc(10002, 1);
    for (int i = 0; i < 10002; i++)
        if (zeroed[i])
            return printf("calloc is not zero\n"), 1;
    check(zeroed, 10002, 16, "calloc");
    void *moved = malloc(64);
    check(kept[n++] = realloc(moved, 10003), 10003, 16, "realloc");
    check(kept[n++] = reallocarray(NULL, 10004, 1), 10004, 16, "reallocarray");
    void *out = NULL;
    if (posix_memalign(&out, 64, 10005))
        printf("posix_memalign failed\n");
    check(kept[n++] = out, 10005, 64, "posix_memalign");
    check(kept[n++] = aligned_alloc(128, 10112), 10112, 128, "aligned_alloc");
    check(kept[n++] = memalign(256, 10007), 10007, 256, "memalign");
    check(kept[n++] = valloc(10008), 10008, 4096, "valloc");
    check(kept[n++] = pvalloc(10009), 12288, 4096, "pvalloc");
    /* The preload library may choose small aligned allocations as samples. */
    for (int alignment = 16; alignment <= 4096; alignment *= 2) {
        for (int i = 0; i < 100; i++) {
            if (posix_memalign(&out, alignment, 48))
                printf("posix_memalign failed\n");
            check(out, 48, alignment, "small posix_memalign");
            free(out);
        }
    }
    if (posix_memalign(&out, 3, 48) != 22 || malloc((size_t)-4096) || calloc((size_t)1 << 40, (size_t)1 << 40)
        || reallocarray(NULL, (size_t)1 << 40, (size_t)1 << 40))
        printf("an impossible request succeeded\n");
    for (int i = 0; i < n; i++)
        free(kept[i]);
    free(NULL);

    char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map[0] = 7;
    map = mremap(map, 1 << 20, 1 << 22, MREMAP_MAYMOVE);
    if (map[0] != 7)
        printf("mremap lost a byte\n");
    munmap(map, 1 << 22);
    char *end = sbrk(0);
    if (sbrk(65536) != end || brk(end))
        printf("the break did not move\n");
    puts("done");
    return 0;
}
