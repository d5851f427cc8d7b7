/* A library whose constructor runs before main and before the constructors of earlier libraries. */
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
    /* dlsym and dlerror allocate. Allocators often look up calloc in this way inside their own calloc. */
    if (dlsym(RTLD_NEXT, "no_such_function") || !dlerror() || !dlsym(RTLD_NEXT, "calloc"))
        abort();
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; i < 200; i++)
        free(kept[i]);
}
