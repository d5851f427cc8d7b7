/* left_out [lost]: two threads change words in `work`. Some changes are between marks of the preload library's own
 * work, which the tracer leaves out. With "lost", one begin mark has no end mark. */
#include <pthread.h>

#define MARK(number) asm volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .ascii \"NPM" number "\"" ::: "memory")

__attribute__((noinline)) void work(long *word, long rounds) {
    for (long i = 0; i < rounds; i++)
        asm volatile("incq %0" : "+m"(*word));
}

static void *stretches(void *lost) {
    long words[2] = {0, 0};
    work(&words[0], 1000);
    MARK("3");
    work(&words[1], 1500);
    MARK("3");
    work(&words[1], 1500);
    MARK("4");
    work(&words[1], 2000);
    MARK("4");
    work(&words[0], 100);
    MARK("4");
    work(&words[0], 10);
    if (lost) {
        MARK("3");
        work(&words[1], 1 << 20);
        work(&words[0], 5000);
    }
    return (void *)words[0];
}

int main(int argc, char **argv) {
    pthread_t other;
    void *first, *second;
    (void)argv;
    pthread_create(&other, 0, stretches, argc > 1 ? &other : 0);
    first = stretches(0);
    pthread_join(other, &second);
    return first != (void *)1110 || second != (void *)(argc > 1 ? 6110L : 1110L);
}
