/* nearpage_replicate.h: a read-mostly array with a copy on every memory node.
 *
 *     nearpage_replica *table = nearpage_replicate(array, size);   once it is filled
 *     const double *mine = nearpage_local(table);                  the copy on this thread's node
 *     ...
 *     nearpage_update(table, offset, values, size);                writes the array and all copies
 *     nearpage_collapse(table);                                    no copies any more
 *     nearpage_release(table);                                     nor a handle; the array stays
 *
 * A stock kernel cannot show one address of one process as different pages on different nodes, so
 * a program asks for the copy that is near: at the beginning of a loop, not once for all, as threads
 * may move between nodes. Whoever writes sees to it that nobody reads meanwhile, as with any array;
 * who writes to the array itself, and not with nearpage_update, writes to no copy.
 *
 * Copies are of anonymous memory that prefers its node (MPOL_PREFERRED): they take size times the
 * number of nodes that the process may use, on top of the array. All copies of a process together take
 * at most NEARPAGE_REPLICAS_MAX bytes (an environment variable; 1 GiB otherwise):
 * nearpage_replica_bytes() says how much there is. What would take more, a machine of one node, a
 * kernel without memory policies: the handle works, without copies, and nearpage_local is the array.
 * 0 is returned only where there is no memory for the handle itself, and taken by nearpage_local and
 * the others without harm (nearpage_local returns 0 then).
 *
 * C and C++, on Linux; nothing to link to, no nearpage needed. Under a strict -std=c…, define
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

/* glibc's, from 2.29 on, by another name: <sched.h> declares it for _GNU_SOURCE only. It asks the
 * kernel's page in the process, in some nanoseconds. */
extern int nearpage_getcpu(unsigned *cpu, unsigned *node) __asm__("getcpu") __attribute__((weak));

/* Nodes with a greater number get no copy: their threads use the array. */
#define NEARPAGE_NODES_MAX 256

typedef struct nearpage_replica {
    void *array;
    size_t size;
    /* Of each node, null: none. */
    void *copies[NEARPAGE_NODES_MAX];
} nearpage_replica;

/* Bytes in copies, of this object file's users; atomic. One place for all files of a program. */
__attribute__((weak)) size_t nearpage_replica_bytes_now = 0;

static inline size_t nearpage_replica_bytes(void) {
    return __atomic_load_n(&nearpage_replica_bytes_now, __ATOMIC_RELAXED);
}

/* Takes so many bytes of those that copies may have; 0: there are not enough left. */
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

/* Memory that prefers one node; null where that can't be had. */
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

/* Gives `size` bytes at `array` a copy on every node that the process may use. */
static inline nearpage_replica *nearpage_replicate(void *array, size_t size) {
    enum { ALLOWED = 4, LONG_BITS = 8 * sizeof(unsigned long) };
    /* As many as any kernel has: it takes no shorter mask than its own. */
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

/* The copy on the node that the calling thread runs on, or the array where that has none. */
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

/* Writes `size` bytes at `offset` to the array and to every copy; what lies beyond its end is not
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

/* Gives the copies up: for an array that is written often from now on. Pointers that nearpage_local
 * returned before end here. */
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

/* Gives the copies up, and the handle. */
static inline void nearpage_release(nearpage_replica *replica) {
    nearpage_collapse(replica);
    free(replica);
}

#ifdef __cplusplus
}
#endif
#endif
