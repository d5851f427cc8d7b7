/* Becomes a daemon: changes its folder, closes every descriptor, opens its own file as descriptor 2, and makes enough
 * allocations for several segments of the log. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argc;
    pid_t child = fork();
    if (child == 0) {
        setsid();
        if (chdir("/"))
            return 1;
        umask(0);
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
        int own = open("/dev/null", O_RDWR);
        own = dup(own);
        own = open(argv[1], O_CREAT | O_RDWR, 0600);
        if (own != 2)
            _exit(9);
        for (int i = 0; i < 20000; i++)
            free(malloc(30000));
        char text[64];
        ssize_t length = pread(own, text, sizeof text, 0);
        _exit(length == 0 ? 0 : 8);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
