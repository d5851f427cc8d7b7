/* nearpage_replicate.h: a read-mostly array with a copy on every memory node.
 *
 *     nearpage_replica *table = nearpage_replicate(array, size);   after the array is filled
 *     const double *mine = nearpage_local(table);                  the copy on this thread's node
 *     ...
 *     nearpage_update(table, offset, values, size);                writes the array and all copies
 *     nearpage_collapse(table);                                    frees the copies
 *     nearpage_release(table);                                     frees the handle, too; the array stays
 *
 * A stock kernel maps an address of a process to a single page, so a program must ask for the copy on its
 * thread's node. Ask at the start of each loop instead of once, because threads may move between nodes. As with
 * any array, the program must keep other threads from reading during a write. Stores to the array itself,
 * without nearpage_update, do not reach the copies.
 *
 * Copies are anonymous memory that prefers its node (MPOL_PREFERRED). They take `size` bytes for each node that
 * the process may use, in addition to the array. All copies of a process together take at most
 * NEARPAGE_REPLICAS_MAX bytes (an environment variable; default 1 GiB), and nearpage_replica_bytes() returns
 * their current size. Beyond this limit, on machines with one node, and on kernels without memory policies, the
 * handle works without copies, and nearpage_local returns the array. nearpage_replicate returns 0 only if there
 * is no memory for the handle. All functions accept a handle of 0; nearpage_local then returns 0.
 *
 * For C and C++ on Linux. The header needs no library and no nearpage. With a strict -std=c…, define
 * _DEFAULT_SOURCE first. */
#ifndef NEARPAGE_REPLICATE_H
#define NEARPAGE_REPLICATE_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/* glibc's getcpu (2.29 and later) by another name, because <sched.h> declares it only with _GNU_SOURCE. It reads the
 * kernel's vDSO, which takes some nanoseconds. */
extern int nearpage_getcpu(unsigned *cpu, unsigned *node) __asm__("getcpu") __attribute__((weak));

/* Nodes with a greater number get no copy: their threads use the array. */
#define NEARPAGE_NODES_MAX 256

typedef struct nearpage_replica {
    void *array;
    size_t size;
    /* By node; null for a node without a copy. */
    void *copies[NEARPAGE_NODES_MAX];
} nearpage_replica;

/* Bytes of all copies; atomic. Weak, so that all object files of a program share one counter. */
__attribute__((weak)) size_t nearpage_replica_bytes_now = 0;

static inline size_t nearpage_replica_bytes(void) {
    return __atomic_load_n(&nearpage_replica_bytes_now, __ATOMIC_RELAXED);
}

/* Reserves bytes for a copy. Returns 0 if the limit does not leave enough. */
static inline int nearpage_replica_reserve(size_t bytes) {
    const char *text = getenv("NEARPAGE_REPLICAS_MAX");
    size_t most = text && *text ? (size_t)strtoull(text, NULL, 10) : (size_t)1 << 30;
    size_t now = __atomic_load_n(&nearpage_replica_bytes_now, __ATOMIC_RELAXED);
    do {
        if (bytes > most || now > most - bytes)
            return 0;
    } while (!__atomic_compare_exchange_n(&nearpage_replica_bytes_now, &now, now + bytes, 0,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return 1;
}

/* Maps memory that prefers a node. Returns null on failure. */
static inline void *nearpage_memory_on(unsigned node, size_t size) {
    enum { PREFERRED = 1, LONG_BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[NEARPAGE_NODES_MAX / LONG_BITS] = {0};
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    mask[node / LONG_BITS] = 1ul << node % LONG_BITS;
    if (syscall(SYS_mbind, memory, size, PREFERRED, mask, (unsigned long)NEARPAGE_NODES_MAX + 1, 0)) {
        munmap(memory, size);
        return NULL;
    }
    return memory;
}

/* Copies `size` bytes at `array` to every node that the process may use. */
static inline nearpage_replica *nearpage_replicate(void *array, size_t size) {
    enum { ALLOWED = 4, LONG_BITS = 8 * sizeof(unsigned long) };
    /* Large enough for any kernel, which refuses masks shorter than its own. */
    unsigned long allowed[4096 / LONG_BITS] = {0};
    unsigned node, nodes = 0;
    nearpage_replica *replica = (nearpage_replica *)calloc(1, sizeof *replica);
    if (!replica)
        return NULL;
    replica->array = array;
    replica->size = size;
    if (!size || syscall(SYS_get_mempolicy, NULL, allowed, 4096ul, NULL, (unsigned long)ALLOWED))
        return replica;
    for (node = 0; node < NEARPAGE_NODES_MAX; node++)
        nodes += allowed[node / LONG_BITS] >> node % LONG_BITS & 1;
    if (nodes < 2)
        return replica;
    for (node = 0; node < NEARPAGE_NODES_MAX; node++) {
        if (!(allowed[node / LONG_BITS] >> node % LONG_BITS & 1) || !nearpage_replica_reserve(size))
            continue;
        replica->copies[node] = nearpage_memory_on(node, size);
        if (replica->copies[node])
            memcpy(replica->copies[node], array, size);
        else
            __atomic_fetch_sub(&nearpage_replica_bytes_now, size, __ATOMIC_RELAXED);
    }
    return replica;
}

/* Returns the copy on the calling thread's node, or the array if this node has none. */
static inline const void *nearpage_local(const nearpage_replica *replica) {
    unsigned cpu = 0, node = 0;
    if (!replica)
        return NULL;
    if (nearpage_getcpu ? nearpage_getcpu(&cpu, &node) : syscall(SYS_getcpu, &cpu, &node, NULL))
        return replica->array;
    if (node >= NEARPAGE_NODES_MAX || !replica->copies[node])
        return replica->array;
    return replica->copies[node];
}

/* Writes `size` bytes at `offset` to the array and to every copy. Bytes beyond the array's end are not
 * written. */
static inline void nearpage_update(nearpage_replica *replica, size_t offset, const void *from,
                                   size_t size) {
    unsigned node;
    if (!replica || offset > replica->size)
        return;
    if (size > replica->size - offset)
        size = replica->size - offset;
    memmove((char *)replica->array + offset, from, size);
    for (node = 0; node < NEARPAGE_NODES_MAX; node++)
        if (replica->copies[node])
            memcpy((char *)replica->copies[node] + offset, (char *)replica->array + offset, size);
}

/* Frees the copies, for an array that will be written often. Pointers that nearpage_local returned
 * before become invalid. */
static inline void nearpage_collapse(nearpage_replica *replica) {
    unsigned node;
    if (!replica)
        return;
    for (node = 0; node < NEARPAGE_NODES_MAX; node++)
        if (replica->copies[node]) {
            munmap(replica->copies[node], replica->size);
            replica->copies[node] = NULL;
            __atomic_fetch_sub(&nearpage_replica_bytes_now, replica->size, __ATOMIC_RELAXED);
        }
}

/* Frees the copies and the handle. */
static inline void nearpage_release(nearpage_replica *replica) {
    nearpage_collapse(replica);
    free(replica);
}

#ifdef __cplusplus
}
#endif
#endif
