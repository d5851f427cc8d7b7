// Fills the heap with small objects and a larger object, and shows the heap and the larger object. `thread`: starts a
// second thread after that; `trim`: returns the small objects' memory and fills again; `free`: frees the larger object.
#include <malloc.h>
#include <pthread.h>

#include "shown.h"

enum { ROWS = 4000, ROW_BYTES = 1000, LARGE_BYTES = 100 << 10 };
static char *rows[ROWS];

static void fill_rows(void) {
    for (int row = 0; row < ROWS; row++) {
        rows[row] = allocate(ROW_BYTES);
        memset(rows[row], row, ROW_BYTES);
    }
}

static void *nothing(void *unused) { return unused; }

__attribute__((noinline)) static char *allocate_large(void) {
    char *large = allocate(LARGE_BYTES);
    memset(large, 1, LARGE_BYTES);
    return large;
}

static void show_heap(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    unsigned long start = 0, end = 0, first, last;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[heap]") && sscanf(line, "%lx-%lx", &first, &last) == 2) {
            start = start ? start : first;
            end = last;
        }
    fclose(maps);
    object("heap", (void *)start, end - start);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    fill_rows();
    if (strcmp(what, "trim") == 0) {
        for (int row = 0; row < ROWS; row++)
            free(rows[row]);
        malloc_trim(0);
        fill_rows();
    }
    char *large = allocate_large();
    object("large", large, LARGE_BYTES);
    if (strcmp(what, "free") == 0) {
        // Keeps the freed object from the end of the heap, which the C library would return.
        char *volatile behind = allocate_large();
        free(large);
        (void)behind;
    }
    if (strcmp(what, "thread") == 0) {
        pthread_t id;
        pthread_create(&id, NULL, nothing, NULL);
        pthread_join(id, NULL);
    }
    show_heap();
    show_mappings();
    return 0;
}
