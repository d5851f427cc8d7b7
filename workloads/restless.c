/* restless [MIB [SWEEPS]]: memory that is mapped, moved, forked and unmapped while it is used.
 *
 * Access pattern, by construction, with T threads:
 *   words     block: thread k adds one to each word of share k of T, again and again
 * The master maps and fills it. After every SWEEPS sweeps, a child made by fork checks its
 * contents, another child executes this program, and the mapping moves to another address.
 * After four such parts the memory is unmapped, which ends a round. Sums are checked
 * throughout. */
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PARTS 4

static uint64_t *words;
static size_t count;

static uint64_t sum(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += words[i];
    return sum;
}

static void *map(void) {
    void *memory = mmap(NULL, count * sizeof *words, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("out of memory");
    return memory;
}

static void require_success(pid_t child, const char *what) {
    int status = -1;
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%s: status %d", what,
            status);
}

static void fork_and_check(uint64_t expected) {
    pid_t child = fork();
    if (!child) {
        /* Makes the child's own copy of a page, while the parent's may be migrating. */
        words[count / 2] += 1;
        _exit(sum() != expected + 1);
    }
    require_success(child, "a child saw something else");
}

static void execute_and_check(void) {
    char *environment[] = {"OMP_NUM_THREADS=1", NULL};
    pid_t child = fork();
    if (!child) {
        dup2(open("/dev/null", O_WRONLY), 1);
        execle("/proc/self/exe", "restless", "0.125", "1", (char *)NULL, environment);
        _exit(127);
    }
    require_success(child, "a program that was executed");
}

/* Moves the memory to another address, where another mapping was a moment ago. */
static void move(void) {
    void *elsewhere = map();
    memset(elsewhere, 1, count * sizeof *words);
    words = mremap(words, count * sizeof *words, count * sizeof *words,
                   MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere);
    if (words == MAP_FAILED)
        die("mremap");
}

int main(int argc, char **argv) {
    count = argument(argc, argv, 1, 1) * MIB / sizeof *words;
    long sweeps = argument(argc, argv, 2, 100);
    const char *until = getenv("WORKLOAD_UNTIL");
    int alone = omp_get_max_threads() == 1;
    uint64_t expected = 0, rounds = 0;
    do {
        words = map();
        for (size_t i = 0; i < count; i++)
            words[i] = random_at(i);
        expected = sum();
        for (int part = 0; part < PARTS; part++) {
#pragma omp parallel
            {
                struct share mine = my_share(count);
                for (long sweep = 0; sweep < sweeps; sweep++)
                    for (size_t i = mine.first; i < mine.end; i++)
                        ((volatile uint64_t *)words)[i] += 1;
            }
            expected += count * sweeps;
            REQUIRE(sum() == expected, "part %d of round %llu", part, (unsigned long long)rounds);
            fork_and_check(expected);
            if (!alone)
                execute_and_check();
            move();
        }
        REQUIRE(sum() == expected, "after the last move");
        munmap(words, count * sizeof *words);
        rounds++;
    } while (until && access(until, F_OK));
    printf("restless checksum %llu rounds %llu\n", (unsigned long long)expected,
           (unsigned long long)rounds);
    return 0;
}
