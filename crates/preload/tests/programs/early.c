/* A library whose constructors run before main, and before those of libraries in front of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static char *kept[200];

__attribute__((constructor(101))) static void begin(void) {
    for (int i = 0; i < 200; i++) {
        kept[i] = calloc(i % 2 ? 7000 : 70, 1);
        for (int j = 0; j < 70; j++)
            if (kept[i][j])
                abort();
        memset(kept[i], 1, 70);
    }
    /* dlsym and dlerror allocate, and an allocator's own calloc often looks itself up like this. */
    if (dlsym(RTLD_NEXT, "no_such_function") || !dlerror() || !dlsym(RTLD_NEXT, "calloc"))
        abort();
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < 200; i++)
        free(kept[i]);
}
