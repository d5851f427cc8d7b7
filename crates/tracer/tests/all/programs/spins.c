/* A thread spins until the main thread, which sleeps for 100 ms, sets a flag. */
#include <pthread.h>
#include <unistd.h>

static volatile int flag;

static void *spin(void *nothing) {
    while (!flag)
        ;
    return nothing;
}

int main(void) {
    pthread_t other;
    pthread_create(&other, 0, spin, 0);
    usleep(100000);
    flag = 1;
    return pthread_join(other, 0);
}
