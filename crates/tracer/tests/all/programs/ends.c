/* ends KIND PROGRAM: touches 64 pages, then ends without exit. "exec" executes PROGRAM as "again", which touches 64
 * pages and checks its arguments and environment. "kill" kills itself. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void touch(void) {
    char *pages = mmap(0, 64 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < 64; page++)
        pages[page << 12] = 1;
}

int main(int argc, char **argv) {
    touch();
    if (argc > 2 && !strcmp(argv[1], "exec")) {
        char *words[] = {"again", "with, comma", "", 0};
        char *environment[] = {"VARIABLE=a,b c", "LD_BIND_NOW=1", 0};
        execve("/nonexistent", words, environment);
        if (errno != ENOENT)
            return 2;
        /* The argument list is at an unmapped address. */
        execve(argv[2], (char **)(words[2] - 0x10000000000), environment);
        if (errno != EFAULT)
            return 3;
        execve(argv[2], words, environment);
        return 4;
    }
    if (argc > 1 && !strcmp(argv[1], "kill"))
        kill(getpid(), SIGKILL);
    const char *variable = getenv("VARIABLE"), *now = getenv("LD_BIND_NOW");
    int given = argc == 3 && !strcmp(argv[0], "again") && !strcmp(argv[1], "with, comma") &&
                !*argv[2] && variable && !strcmp(variable, "a,b c") && now && !strcmp(now, "1");
    return given ? 0 : 5;
}
