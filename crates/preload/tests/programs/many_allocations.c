/* many_allocations NUMBER BYTES: NUMBER pairs of malloc and free. The environment may set resource limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void limit(const char *name, int resource) {
    if (getenv(name)) {
        struct rlimit limits = {strtoull(getenv(name), 0, 0), strtoull(getenv(name), 0, 0)};
        if (setrlimit(resource, &limits))
            puts("no limit");
    }
}

int main(int argc, char **argv) {
    (void)argc;
    limit("TEST_FILE_BYTES", RLIMIT_FSIZE);
    limit("TEST_ADDRESS_BYTES", RLIMIT_AS);
    long number = atol(argv[1]), bytes = atol(argv[2]);
    for (long i = 0; i < number; i++) {
        char *memory = malloc(bytes);
        if (!memory)
            return puts("out of memory"), 1;
        memory[i % bytes] = 1;
        free(memory);
    }
    puts("done");
    return 0;
}
