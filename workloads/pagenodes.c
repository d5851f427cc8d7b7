/* pagenodes PID START LENGTH: prints the node of every page in a range of a process's memory, by
 * move_pages(2), which moves nothing when no nodes are given.
 *
 * Prints a line for each run of pages on one node: "0xSTART PAGES NODE". A negative NODE is the
 * kernel's error code, -2 for an absent page. START and LENGTH are in bytes, rounded outwards to
 * whole pages. */
#include "workload.h"

static long page_nodes(int pid, unsigned long count, void **pages, int *status) {
    return syscall(SYS_move_pages, pid, count, pages, NULL, status, 0);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: pagenodes PID START LENGTH\n");
        return 2;
    }
    int pid = atoi(argv[1]);
    size_t page = sysconf(_SC_PAGESIZE);
    uintptr_t start = strtoull(argv[2], NULL, 0), end = start + strtoull(argv[3], NULL, 0);
    start -= start % page;

    enum { BATCH = 4096 };
    void *pages[BATCH];
    int status[BATCH];
    uintptr_t run_start = start;
    size_t run_length = 0;
    int run_node = 0;
    while (start < end) {
        unsigned long count = 0;
        for (; count < BATCH && start < end; count++, start += page)
            pages[count] = (void *)start;
        if (page_nodes(pid, count, pages, status)) {
            perror("pagenodes: move_pages");
            return 1;
        }
        for (unsigned long i = 0; i < count; i++) {
            if (run_length && status[i] != run_node) {
                printf("0x%lx %zu %d\n", (unsigned long)run_start, run_length, run_node);
                run_start += run_length * page;
                run_length = 0;
            }
            run_node = status[i];
            run_length++;
        }
    }
    if (run_length)
        printf("0x%lx %zu %d\n", (unsigned long)run_start, run_length, run_node);
}
