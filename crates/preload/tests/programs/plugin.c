#include <stdlib.h>

static void *early;
char plugin_table[1 << 20];

__attribute__((constructor)) static void begin(void) { early = malloc(70001); }
__attribute__((destructor)) static void end(void) { free(early); }

void *plugin_allocate(void) { return malloc(70002); }
