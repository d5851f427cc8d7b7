/* Executes itself by each exec function in turn, then a shell. Each exec follows a failed exec. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    int step = argc > 1 ? atoi(argv[1]) : 0;
    char next[2] = {(char)('1' + step), 0};
    char *arguments[] = {argv[0], next, "3", "4", "5", "6", "7", "8", "9", NULL};
    if (step > 0 && (argc != 9 + 1 - 1 || strcmp(argv[8], "9")))
        return 3;
    free(malloc(20001 + step));
    fflush(stdout);
    execl("/no/such/program", "no", "1", "2", "3", "4", "5", "6", "7", (char *)0);
    free(malloc(30001 + step));
    int self = open(argv[0], O_RDONLY | O_CLOEXEC);
    switch (step) {
    case 0: execl(argv[0], argv[0], next, "3", "4", "5", "6", "7", "8", "9", (char *)0); break;
    case 1: execle(argv[0], argv[0], next, "3", "4", "5", "6", "7", "8", "9", (char *)0, environ); break;
    case 2: execlp(argv[0], argv[0], next, "3", "4", "5", "6", "7", "8", "9", (char *)0); break;
    case 3: execv(argv[0], arguments); break;
    case 4: execve(argv[0], arguments, environ); break;
    case 5: execvp(argv[0], arguments); break;
    case 6: execvpe(argv[0], arguments, environ); break;
    case 7: fexecve(self, arguments, environ); break;
    default: execl("/bin/sh", "sh", "-c", "echo shell", (char *)0);
    }
    return 1;
}
