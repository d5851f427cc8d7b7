// Allocates objects in the way that the first argument names, and shows them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shown.h"

char table[1 << 20] __attribute__((aligned(4096)));
char odd_sized[300007];
const char constant[1 << 16] = {1};

__attribute__((noinline)) void *allocate_b(size_t size) { void *p = allocate(size); __asm__ volatile("" ::: "memory"); return p; }
__attribute__((noinline)) void *plain(size_t size) { void *p = allocate(size); __asm__ volatile("" ::: "memory"); return p; }

static pthread_barrier_t barrier;
static void *worker(void *number) {
    cpu_set_t cpus;
    pthread_barrier_wait(&barrier);
    sched_getaffinity(0, sizeof cpus, &cpus);
    printf("WORKER %ld %d %d\n", (long)number, CPU_COUNT(&cpus), CPU_ISSET(0, &cpus) ? 0 : 1);
    pthread_barrier_wait(&barrier);
    void *own = allocate_a(1 << 20);
    char name[32];
    sprintf(name, "worker%ld", (long)number);
    object(name, own, 1 << 20);
    pthread_barrier_wait(&barrier);
    return NULL;
}

#define SHARED_BYTES (8 << 20)
static char *shared;
static long readers;

// Sums its share of the object that the first thread filled.
static void *reader(void *number) {
    long share = SHARED_BYTES / readers, sum = 0;
    for (long at = (long)number * share; at < ((long)number + 1) * share; at++) sum += shared[at];
    return (void *)sum;
}

// Fills an object alone and has `n` threads read it. The sum shows that no content was lost.
static void fill_and_read(long n) {
    shared = fill(allocate_a(SHARED_BYTES), SHARED_BYTES);
    free(fill(allocate_a(1 << 20), 1 << 20));
    fill(table, sizeof table);
    object("shared", shared, SHARED_BYTES);
    object("table", table, sizeof table);
    pthread_t threads[64];
    long sum = 0;
    void *own;
    readers = n;
    for (long i = 0; i < n; i++) pthread_create(&threads[i], NULL, reader, (void *)i);
    for (long i = 0; i < n; i++) {
        pthread_join(threads[i], &own);
        sum += (long)own;
    }
    printf("SUM %ld\n", sum);
    object("after", allocate_a(1 << 20), 1 << 20);
}

// Allocates and frees objects while other threads do the same, and keeps some.
static void *churn(void *depth) {
    pthread_t threads[4];
    for (int i = 0; i < 50; i++) free(fill(allocate_a(20000 + 1000 * i), 20000));
    fill(allocate_a(1 << 20), 1 << 20);
    if (depth) {
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, (void *)((long)depth - 1));
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    }
    return NULL;
}

// Runs in a thread that the C library creates (SIGEV_THREAD).
static sem_t notified;
static void notify(union sigval value) {
    (void)value;
    fill(allocate_b(1 << 20), 1 << 20);
    sem_post(&notified);
}

int main(int argc, char **argv) {
    const char *what = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (!strcmp(what, "static")) {
        memset(odd_sized, 1, sizeof odd_sized);
        object("table", table, sizeof table);
        object("odd_sized", odd_sized, sizeof odd_sized);
    } else if (!strcmp(what, "heap")) {
        object("large", allocate_a(8 << 20), 8 << 20);
        object("small", allocate_b(100000), 100000);
        object("tiny", allocate_b(5000), 5000);
        object("second", allocate_b(100000), 100000);
    } else if (!strcmp(what, "many")) {
        size_t n = strtoul(argv[2], NULL, 0), size = strtoul(argv[3], NULL, 0);
        for (size_t i = 0; i < n; i++)
            free(fill(allocate_a(size), size));
    } else if (!strcmp(what, "mapping")) {
        object("mapping", mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
        object("reserved", mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
    } else if (!strcmp(what, "remap")) {
        char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mmap(map + (1 << 20), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        for (int i = 0; i < 1 << 20; i += 4096) map[i] = i >> 12;
        map = mremap(map, 1 << 20, 2 << 20, MREMAP_MAYMOVE);
        int good = map != MAP_FAILED;
        for (int i = 0; good && i < 1 << 20; i += 4096) good = map[i] == (char)(i >> 12) && map[i + (1 << 20)] == 0;
        printf("REMAP %s\n", good ? "good" : "bad");
        object("remapped", map, 2 << 20);
    } else if (!strcmp(what, "realloc")) {
        char *p = allocate_a(1 << 20);
        memset(p, 1, 1 << 20);
        p = realloc(p, 3 << 20);
        object("resized", p, 3 << 20);
        printf("REALLOC %s\n", p[0] == 1 && p[(1 << 20) - 1] == 1 ? "good" : "bad");
    } else if (!strcmp(what, "reuse")) {
        char *p = allocate_a(100000);
        plain(64);
        free(fill(p, 100000));
        char *q = plain(100000);
        printf("REUSED %d\n", p == q);
        if (argc > 2) {
            object("unplaced", q, 100000);
        } else {
            free(q);
            char *r = allocate_a(100000);
            printf("REUSED %d\n", p == r);
            object("placed", r, 100000);
        }
    } else if (!strcmp(what, "dlopen")) {
        void *library = dlopen(argv[2], RTLD_NOW);
        char *symbol = dlsym(library, "library_table");
        free(plain(100000));
        object("library_table", symbol, 1 << 19);
    } else if (!strcmp(what, "fork")) {
        pid_t child = fork();
        if (child) {
            waitpid(child, NULL, 0);
            return 0;
        }
        object("of_child", allocate_a(1 << 20), 1 << 20);
    } else if (!strcmp(what, "exec")) {
        execl(argv[0], argv[0], "heap", NULL);
    } else if (!strcmp(what, "threads")) {
        long n = strtol(argv[2], NULL, 0);
        pthread_t threads[64];
        pthread_barrier_init(&barrier, NULL, n);
        for (long i = 0; i < n; i++) pthread_create(&threads[i], NULL, worker, (void *)i);
        for (long i = 0; i < n; i++) pthread_join(threads[i], NULL);
        cpu_set_t cpus;
        sched_getaffinity(0, sizeof cpus, &cpus);
        printf("MAIN %d %d\n", CPU_COUNT(&cpus), CPU_ISSET(0, &cpus) ? 0 : 1);
    } else if (!strcmp(what, "later")) {
        fill_and_read(strtol(argv[2], NULL, 0));
    } else if (!strcmp(what, "later_fork")) {
        // The child inherits the parent's filled object. Then it fills an object of its own and starts threads.
        object("parents", fill(allocate_b(1 << 20), 1 << 20), 1 << 20);
        pid_t child = fork();
        if (child) {
            waitpid(child, NULL, 0);
            return 0;
        }
        fill_and_read(strtol(argv[2], NULL, 0));
    } else if (!strcmp(what, "later_unseen")) {
        object("filled", fill(allocate_a(1 << 20), 1 << 20), 1 << 20);
        struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify};
        struct itimerspec at_once = {.it_value.tv_nsec = 1};
        timer_t timer;
        sem_init(&notified, 0, 0);
        timer_create(CLOCK_MONOTONIC, &event, &timer);
        timer_settime(timer, 0, &at_once, NULL);
        while (sem_wait(&notified)) {}
    } else if (!strcmp(what, "rows")) {
        // Fills N objects, frees the third, starts a thread, and fills two more objects.
        long rows = strtol(argv[2], NULL, 0);
        char *row[64], name[32];
        for (long i = 0; i < rows + 2; i++) {
            pthread_t thread;
            if (i == rows) {
                free(row[2]);
                pthread_create(&thread, NULL, churn, NULL);
                pthread_join(thread, NULL);
            }
            row[i] = fill(allocate_a(1 << 18), 1 << 18);
        }
        for (long i = 0; i < rows + 2; i++) {
            sprintf(name, "row%ld", i);
            if (i != 2) object(name, row[i], 1 << 18);
        }
    } else if (!strcmp(what, "later_churn")) {
        void *objects[50];
        for (int i = 0; i < 50; i++) objects[i] = fill(allocate_a(1 << 17), 1 << 17);
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, (void *)2);
        for (int i = 0; i < 50; i++) free(objects[i]);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(what, "present")) {
        unsigned char pages[2048];
        char *p = allocate_a(8 << 20);
        mincore((char *)((size_t)p & -4096), 8 << 20, pages);
        int present = 0;
        for (int i = 0; i < 2048; i++) present += pages[i] & 1;
        printf("PRESENT %d\n", present);
    } else if (!strcmp(what, "come_and_go")) {
        // Allocates 100 objects of 1 MiB one after the other, and touches N pages of each.
        long used = strtol(argv[2], NULL, 0);
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        for (int i = 0; i < 100; i++) {
            char *p = allocate_a(1 << 20);
            for (long page = 0; page < used; page++) p[page * 4096] = 1;
            free(p);
        }
        getrusage(RUSAGE_SELF, &after);
        printf("FAULTS %ld\n", after.ru_minflt - before.ru_minflt);
    }
    show_mappings();
    return 0;
}
