/* One thread, scalar code: loads, stores, both at once, a call, unaligned words, a string move. */
#include <string.h>

static long words[4096];
static char bytes[4096];
static volatile long sink;

__attribute__((noinline)) long work(long rounds) {
    long sum = 0;
    for (long i = 0; i < rounds; i++) {
        sum += words[i * 7 & 4095];
        words[i & 4095] += i;
        bytes[i & 4095] = (char)sum;
        if (i % 3 == 0)
            sum += *(volatile int *)(bytes + (i & 2047) + 1);
        sink = sum;
    }
    return sum;
}

int main(void) { return work(5000) == 1; }
