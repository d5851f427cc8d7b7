/* pinned_buffer [KIB [SWEEPS]]: an array of which the kernel pins a part: a buffer registered with io_uring, like
 * buffers of RDMA and of drivers in user space (vfio).
 *
 * Access pattern, by construction, with T threads:
 *   buffer    block, loads: the master fills it and registers its first half; then thread k reads share k
 * Exits with status 3 where io_uring is not available. */
#include "workload.h"

#include <linux/io_uring.h>
#include <sys/uio.h>

static void pin(void *address, size_t bytes) {
    struct io_uring_params parameters = {0};
    struct iovec buffer = {address, bytes};
    int ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0 || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1)) {
        perror("pinned_buffer: io_uring");
        exit(3);
    }
}

int main(int argc, char **argv) {
    size_t bytes = argument(argc, argv, 1, 2048) * 1024;
    long sweeps = argument(argc, argv, 2, 200);
    size_t count = bytes / sizeof(uint64_t);
    uint64_t *buffer = allocate(bytes);
    for (size_t i = 0; i < count; i++)
        buffer[i] = i;
    pin(buffer, bytes / 2);
    uint64_t sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        int k = omp_get_thread_num(), team = omp_get_num_threads();
        volatile uint64_t *own = buffer;
        for (long round = 0; has_round(round); round++) {
            for (long sweep = 0; sweep < sweeps; sweep++)
                for (size_t i = share_begin(count, k, team); i < share_begin(count, k + 1, team); i += 8)
                    sum += own[i];
            if (k == 0)
                round_ended(round);
        }
    }
    struct object objects[] = {{"buffer", buffer, bytes}};
    PAUSE(objects);
    printf("%" PRIu64 "\n", sum);
    return 0;
}
