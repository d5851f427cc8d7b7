/* Four threads allocate, grow, shrink and free each other's objects, and check every byte. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 512
struct object { unsigned char *bytes; size_t size; unsigned char mark; };
static struct object slots[SLOTS];
static pthread_mutex_t locks[SLOTS];

static void verify(struct object *object, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (object->bytes[i] != object->mark) {
            puts("a byte changed");
            abort();
        }
}

static void *run(void *seed) {
    uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 100000; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int index = state % SLOTS;
        size_t size = state >> 32 & 1 ? (state >> 40) % 300 + 1 : (state >> 40) % 9000 + 1;
        struct object *object = &slots[index];
        pthread_mutex_lock(&locks[index]);
        switch (state >> 20 & 3) {
        case 0:
            if (object->bytes)
                verify(object, object->size);
            free(object->bytes);
            object->bytes = calloc(1, size);
            object->mark = 0;
            verify(&(struct object){object->bytes, size, 0}, size);
            break;
        case 1: {
            size_t kept = object->bytes ? object->size < size ? object->size : size : 0;
            object->bytes = realloc(object->bytes, size);
            verify(object, kept);
            break;
        }
        case 2:
            free(object->bytes);
            if (posix_memalign((void **)&object->bytes, 64, size))
                abort();
            break;
        default:
            free(object->bytes);
            object->bytes = malloc(size);
        }
        object->size = size;
        object->mark = (unsigned char)(state >> 56);
        if (malloc_usable_size(object->bytes) < size)
            puts("too small");
        memset(object->bytes, object->mark, size);
        pthread_mutex_unlock(&locks[index]);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < SLOTS; i++)
        pthread_mutex_init(&locks[i], NULL);
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
