/* stores ROUNDS: stores repeatedly to one line of each of four pages. The stores hit the cache. */
#include <stdlib.h>

static volatile long pages[4][512] __attribute__((aligned(4096)));

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < 2000; i++)
            for (int page = 0; page < 4; page++)
                pages[page][page * 16]++;
    return 0;
}
