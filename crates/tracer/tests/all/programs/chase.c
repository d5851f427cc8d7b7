/* chase [list]: reads 20,000 cache lines in the same order, by index or (`list`) by following pointers. */
#include <stdlib.h>

enum { LINES = 20000, STEP = 7919 };

struct line {
    struct line *next;
    long value, rest[6];
};

__attribute__((noinline)) long array(struct line *lines) {
    long sum = 0;
    for (long i = 0; i < LINES; i++)
        sum += lines[i * STEP % LINES].value;
    return sum;
}

__attribute__((noinline)) long list(struct line *line) {
    long sum = 0;
    do {
        sum += line->value;
        line = line->next;
    } while (line->value);
    return sum;
}

int main(int argc, char **argv) {
    (void)argv;
    struct line *lines = aligned_alloc(64, LINES * sizeof *lines);
    for (long i = 0; i < LINES; i++)
        lines[i] = (struct line){.next = &lines[(i + STEP) % LINES], .value = i != 0};
    return argc > 1 ? list(&lines[STEP]) != LINES - 1 : array(lines) != LINES - 1;
}
