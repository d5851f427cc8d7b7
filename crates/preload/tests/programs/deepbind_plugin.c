/* Allocates and frees for the program `deepbind`, which has a function with the same name as one in this library. */
#include <stdlib.h>
#include <string.h>

int whose(void) { return 2; }

int plugin_whose(void) { return whose(); }

void *plugin_make(size_t bytes) {
    void *object = malloc(bytes);
    return object ? memset(object, 1, bytes) : NULL;
}

void plugin_release(void *object) { free(object); }
