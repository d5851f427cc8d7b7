/* atomics [thread]: one thread executes a thousand of each atomic read-modify-write in `work`. With `thread`, the
 * process has a second thread. */
#include <pthread.h>
#include <unistd.h>

static long words[4];

__attribute__((noinline)) void work(void) {
    for (int i = 0; i < 1000; i++) {
        asm volatile("lock incq %0" : "+m"(words[0]));
        long one = 1;
        asm volatile("lock xaddq %1, %0" : "+m"(words[1]), "+r"(one));
        asm volatile("xchgq %1, %0" : "+m"(words[2]), "+r"(one));
        /* The comparison always fails. */
        long other = -1;
        asm volatile("lock cmpxchgq %2, %0" : "+m"(words[3]), "+a"(other) : "r"(one));
    }
}

static void *wait(void *nothing) {
    for (;;)
        pause();
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t other;
    (void)argv;
    if (argc > 1)
        pthread_create(&other, 0, wait, 0);
    work();
    _exit(words[0] == 1000 && words[1] == 1000 ? 0 : 1);
}
