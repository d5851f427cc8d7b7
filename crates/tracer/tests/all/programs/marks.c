/* Touches pages before, between and after the markers. */
#include <sys/prctl.h>

static volatile char pages[64 * 4096];

static void touch(int first, int end) {
    for (int page = first; page < end; page++)
        pages[page * 4096]++;
}

int main(void) {
    touch(0, 16);
    prctl(0x4e504d4b, 1);
    touch(16, 32);
    prctl(0x4e504d4b, 2);
    touch(32, 64);
    return 0;
}
