/* hostile HOW: takes a resource away from itself (such as descriptors), and continues to allocate. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void limit(int resource, rlim_t to) {
    struct rlimit limits = {to, to};
    if (setrlimit(resource, &limits))
        exit(3);
}

static void *work(void *unused) {
    for (int i = 0; i < 20000; i++) {
        char *memory = malloc(i % 3 ? 5000 : 100), *larger;
        if (!memory)
            exit(4);
        memset(memory, i, 100);
        if (!(larger = realloc(memory, 9000)))
            exit(4);
        free(larger);
    }
    return unused;
}

static rlim_t address_space(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        exit(5);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (argc > 2)
        work(NULL);
    if (!strcmp(how, "files"))
        limit(RLIMIT_NOFILE, 3);
    else if (!strcmp(how, "close")) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    } else if (!strcmp(how, "space"))
        limit(RLIMIT_AS, address_space() + (24 << 20));
    else if (!strcmp(how, "size"))
        limit(RLIMIT_FSIZE, 0);
    else if (!strcmp(how, "stack"))
        limit(RLIMIT_STACK, 256 << 10);
    else
        return 2;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 256 << 10);
        if (pthread_create(&thread, &attributes, work, NULL))
            exit(6);
        work(NULL);
        pthread_join(thread, NULL);
    }
    puts("done");
    return fflush(stdout) ? 7 : 0;
}
