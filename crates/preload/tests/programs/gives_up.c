/* Gives up the right, or the path, by which its log could grow, and then makes enough allocations for several segments.
 * Root alone can. The argument says how. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static int gives_up(const char *how, const char *folder) {
    if (!strcmp(how, "setuid"))
        return setuid(NOBODY);
    if (!strcmp(how, "seteuid"))
        return seteuid(NOBODY);
    if (!strcmp(how, "setreuid"))
        return setreuid(NOBODY, NOBODY);
    if (!strcmp(how, "setresuid"))
        return setresuid(-1, NOBODY, -1);
    if (!strcmp(how, "syscall"))
        return syscall(SYS_setuid, NOBODY);
    if (!strcmp(how, "chroot"))
        return chroot(folder);
    return -1;
}

static void allocate(int count) {
    for (int i = 0; i < count; i++)
        free(malloc(30000));
}

int main(int argc, char **argv) {
    if (geteuid() != 0)
        return 77;
    /* A worker, which its own parent leaves as it is: servers do so. */
    pid_t child = argc > 3 ? fork() : 0;
    if (child == 0) {
        allocate(10);
        if (gives_up(argv[1], argv[2]))
            _exit(1);
        allocate(20000);
    }
    int status = 0;
    if (child > 0)
        waitpid(child, &status, 0);
    if (child == 0 && argc > 3)
        _exit(0);
    puts(status ? "failed" : "done");
    return 0;
}
