/* Executes itself once, then a shell. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    free(malloc(argc > 1 ? 20002 : 20001));
    fflush(stdout);
    if (argc == 1)
        execl(argv[0], argv[0], "again", (char *)0);
    execl("/bin/sh", "sh", "-c", "echo shell", (char *)0);
    return 1;
}
