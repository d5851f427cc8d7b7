/* replicas [MIB [FILE]]: an array that all threads read, with a copy on every node
 * (nearpage_replicate.h).
 *
 * Checks the node of the copy that each thread gets, its content before and after updates, the
 * memory that copies take and its limit, and that no copy remains at the end. For a FILE that
 * `nearpage run --replicate file:FILE` replicates, checks that mapped pages are on the thread's
 * node, and on the node of a child that starts on another one. */
#include "workload.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "nearpage_replicate.h"

/* The node of a page that is present. */
static int node_of(const void *address) {
    void *page = (void *)((uintptr_t)address & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1));
    int node = -1;
    REQUIRE(syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0) == 0, "move_pages");
    return node;
}

static int own_node(void) {
    unsigned cpu, node;
    REQUIRE(syscall(SYS_getcpu, &cpu, &node, NULL) == 0, "getcpu");
    return node;
}

static void map_file(const char *path, int flags) {
    char read_of_it[64] = {0};
    int fd = open(path, O_RDONLY);
    REQUIRE(fd >= 0 && read(fd, read_of_it, sizeof read_of_it) > 0, "%s", path);
    int before = own_node();
    const char *mapped = mmap(NULL, sizeof read_of_it, PROT_READ, flags, fd, 0);
    REQUIRE(mapped != MAP_FAILED && !memcmp(mapped, read_of_it, sizeof read_of_it), "mmap");
    int node = node_of(mapped);
    REQUIRE(before != own_node() || node == before, "%s: on node %d, not %d", path, node, before);
    close(fd);
}

/* Maps the file in children of fork on all other CPUs, and checks the pages' nodes. */
static int map_file_in_children(const char *path) {
    int fd = open(path, O_RDONLY), children = 0;
    struct stat status;
    REQUIRE(fd >= 0 && !fstat(fd, &status), "%s", path);
    char *contents = malloc(status.st_size);
    REQUIRE(contents && read(fd, contents, status.st_size) == status.st_size, "read");
    cpu_set_t before;
    REQUIRE(!sched_getaffinity(0, sizeof before, &before), "affinity");
    const char *private = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    const char *shared = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    REQUIRE(private != MAP_FAILED && shared != MAP_FAILED, "mmap");
    int home = own_node();
    for (int cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); cpu++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) || own_node() == home)
            continue;
        int child = fork(), ended;
        REQUIRE(child >= 0, "fork");
        if (child == 0) {
            int same = !memcmp(private, contents, status.st_size) && !memcmp(shared, contents, status.st_size);
            _exit(!same ? 1 : node_of(private) != own_node() || node_of(shared) != own_node() ? 2 : 0);
        }
        REQUIRE(waitpid(child, &ended, 0) == child && WIFEXITED(ended), "waitpid");
        REQUIRE(!WEXITSTATUS(ended), "CPU %d: %s", cpu, WEXITSTATUS(ended) == 1 ? "another content" : "from afar");
        children++;
    }
    REQUIRE(!sched_setaffinity(0, sizeof before, &before), "affinity");
    return children;
}

int main(int argc, char **argv) {
    size_t count = argument(argc, argv, 1, 1) * MIB / sizeof(uint64_t), bytes = count * sizeof(uint64_t);
    uint64_t *array = allocate(bytes);
    for (size_t i = 0; i < count; i++)
        array[i] = random_at(i);
    nearpage_replica *replica = nearpage_replicate(array, bytes);
    int copies = nearpage_replica_bytes() / bytes;
    REQUIRE(replica && nearpage_replica_bytes() % bytes == 0, "%zu bytes", nearpage_replica_bytes());
    int moved = 0;
#pragma omp parallel reduction(+ : moved)
    {
        /* A thread that the kernel moves meanwhile can't be judged. */
        int before = own_node();
        const uint64_t *mine = nearpage_local(replica);
        int node = node_of(mine + count / 2), after = own_node();
        moved += before != after;
        REQUIRE(before != after || copies == 0 || node == after, "on node %d, of node %d", after, node);
        REQUIRE(!memcmp(mine, array, bytes), "another content");
    }
    uint64_t values[3] = {1, 2, 3};
    nearpage_update(replica, bytes - 2 * sizeof *values, values, sizeof values);
#pragma omp parallel
    {
        const uint64_t *mine = nearpage_local(replica);
        REQUIRE(mine[count - 3] == random_at(count - 3) && mine[count - 2] == 1 && mine[count - 1] == 2,
                "an update that was not seen");
    }
    /* The limit on memory leaves no room for another copy. */
    setenv("NEARPAGE_REPLICAS_MAX", "1", 1);
    nearpage_replica *without = nearpage_replicate(array, bytes);
    REQUIRE(nearpage_local(without) == array, "more copies than may be");
    nearpage_release(without);
    nearpage_collapse(replica);
    REQUIRE(nearpage_local(replica) == array && nearpage_replica_bytes() == 0, "copies are left");
    nearpage_release(replica);
    REQUIRE(nearpage_local(NULL) == NULL, "a handle of nothing");
    int children = argc > 2 ? map_file_in_children(argv[2]) : 0;
    if (argc > 2)
#pragma omp parallel
    {
        map_file(argv[2], MAP_PRIVATE);
        map_file(argv[2], MAP_SHARED);
    }
    printf("replicas copies %d, %d threads moved, %d children elsewhere\n", copies, moved, children);
    return 0;
}
