/* deepbind LIBRARY: loads LIBRARY with RTLD_DEEPBIND. Program and library free each other's allocations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    enum { COUNT = 100000 };
    char **small = calloc(COUNT, sizeof *small);
    for (int i = 0; i < COUNT; i++)
        memset(small[i] = malloc(100), i, 100);
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    if (!library)
        return 2;
    void *(*make)(size_t) = (void *(*)(size_t))dlsym(library, "plugin_make");
    void (*release)(void *) = (void (*)(void *))dlsym(library, "plugin_release");
    int (*whose)(void) = (int (*)(void))dlsym(library, "plugin_whose");
    for (int i = 0; i < COUNT; i++)
        release(small[i]);
    for (int i = 0; i < 100; i++) {
        void *object = make(70000);
        if (!object)
            return 3;
        free(object);
    }
    release(small);
    /* RTLD_DEEPBIND: the library must use its own function of this name. */
    printf("%s\n", whose() == 2 ? "done" : "another's function");
    return 0;
}

int whose(void) { return 1; }
