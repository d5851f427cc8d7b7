/* smalls [OTHER]: many small objects beside two large ones; prints the nodes of their pages.
 *
 * The main thread, on CPU 0, fills rows of 400 bytes, an array of 2 MiB ("middle") and one of 8 MiB ("large"). Then
 * a thread on each CPU fills an array on its stack and rows of its own. A forked child fills rows, too, and
 * so does OTHER, a program like this one, started as `OTHER --child`. Prints pages by node, from
 * move_pages(2) without nodes, which moves nothing: lines "NAME NODE:PAGES …"; in "stack K" and
 * "own rows K", K is the CPU. */
#include "workload.h"

#include <sched.h>
#include <pthread.h>
#include <sys/wait.h>

enum { ROWS = 20000, ROW_BYTES = 400, OWN_ROWS = 2000, STACK_BYTES = 256 << 10, NODES_MAX = 64 };

static long by_node[NODES_MAX];
static size_t page_bytes;

/* Counts the pages that lie within a range. */
static void count(const char *memory, size_t bytes) {
    uintptr_t page = ((uintptr_t)memory + page_bytes - 1) / page_bytes * page_bytes;
    for (; page + page_bytes <= (uintptr_t)memory + bytes; page += page_bytes) {
        void *pages[1] = {(void *)page};
        int status[1] = {-1};
        syscall(SYS_move_pages, 0, 1L, pages, NULL, status, 0);
        if (status[0] >= 0 && status[0] < NODES_MAX)
            by_node[status[0]]++;
    }
}

static void show(const char *name) {
    printf("%s", name);
    for (int node = 0; node < NODES_MAX; node++)
        if (by_node[node])
            printf(" %d:%ld", node, by_node[node]);
    printf("\n");
    fflush(stdout);
    memset(by_node, 0, sizeof by_node);
}

/* Rows one after another, most of them in the page of the row before: counts each page once. */
static char **fill_rows(int rows) {
    char **all = malloc(rows * sizeof *all);
    for (int row = 0; row < rows; row++)
        all[row] = memset(malloc(ROW_BYTES), row, ROW_BYTES);
    return all;
}

static void show_rows(const char *name, char **rows, int count_of_rows) {
    uintptr_t last = 0;
    for (int row = 0; row < count_of_rows; row++) {
        uintptr_t page = (uintptr_t)rows[row] / page_bytes * page_bytes;
        if (page != last)
            count((char *)page, page_bytes);
        last = page;
    }
    show(name);
}

static char *fill(size_t bytes) {
    return memset(malloc(bytes), 1, bytes);
}

static void *work(void *cpu) {
    char array[STACK_BYTES], name[32];
    memset(array, 1, sizeof array);
    __asm__ volatile("" : : "r"(array) : "memory");
    count(array, sizeof array);
    sprintf(name, "stack %ld", (long)cpu);
    show(name);
    sprintf(name, "own rows %ld", (long)cpu);
    show_rows(name, fill_rows(OWN_ROWS), OWN_ROWS);
    return NULL;
}

static void run_on(long cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
    /* Larger than the stack that the C library kept from the thread before, whose pages are present. */
    pthread_attr_setstacksize(&attributes, (2 + cpu) << 20);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, (void *)cpu)) {
        fprintf(stderr, "smalls: no thread on CPU %ld\n", cpu);
        exit(1);
    }
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    page_bytes = sysconf(_SC_PAGESIZE);
    if (argc > 1 && !strcmp(argv[1], "--child")) {
        show_rows("other", fill_rows(ROWS), ROWS);
        return 0;
    }
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    char **rows = fill_rows(ROWS), *middle = fill(2 << 20), *large = fill(8 << 20);
    for (long cpu = 0; cpu < all; cpu++)
        run_on(cpu);
    show_rows("rows", rows, ROWS);
    count(middle, 2 << 20);
    show("middle");
    count(large, 8 << 20);
    show("large");
    pid_t child = fork();
    if (!child) {
        show_rows("forked", fill_rows(ROWS), ROWS);
        return 0;
    }
    waitpid(child, NULL, 0);
    if (argc > 1) {
        execl(argv[1], argv[1], "--child", (char *)NULL);
        perror(argv[1]);
        return 1;
    }
}
