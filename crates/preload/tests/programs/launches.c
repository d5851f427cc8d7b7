/* launches HOW PROGRAM [LIBRARY]: executes a program by the function HOW, with a new environment.
   With LIBRARY, this file is removed first. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *const variables[] = {"ANOTHER=1", NULL};

static void child(const char *how, char *program) {
    char *const words[] = {program, "10", "10000", NULL};
    char *name = strrchr(program, '/') + 1;
    if (!strcmp(how, "execve"))
        execve(program, words, variables);
    else if (!strcmp(how, "execvpe"))
        execvpe(name, words, variables);
    else if (!strcmp(how, "execveat"))
        execveat(AT_FDCWD, program, words, variables, 0);
    else if (!strcmp(how, "fexecve"))
        fexecve(open(program, O_RDONLY | O_CLOEXEC), words, variables);
    else if (!strcmp(how, "null"))
        execve(program, words, NULL);
    else if (!strcmp(how, "execl"))
        execl(program, program, "10", "10000", (char *)NULL);
    else if (!strcmp(how, "execle"))
        execle(program, program, "10", "10000", (char *)NULL, variables);
    else if (!strcmp(how, "execle-long"))
        execle(program, program, "10", "10000", "3", "4", "5", "6", "7", "8", "9", (char *)NULL, variables);
    else if (!strcmp(how, "execlp"))
        execlp(name, name, "10", "10000", (char *)NULL);
    else {
        if (strcmp(how, "execv") && strcmp(how, "execvp"))
            _exit(9);
        clearenv();
        setenv("PATH", getenv("PATH") ? getenv("PATH") : "", 1);
        if (!strcmp(how, "execv"))
            execv(program, words);
        else {
            char folder[4096];
            snprintf(folder, sizeof folder, "%.*s", (int)(name - 1 - program), program);
            setenv("PATH", folder, 1);
            execvp(name, words);
        }
    }
    _exit(8);
}

int main(int argc, char **argv) {
    char *how = argc > 2 ? argv[1] : "";
    char *const words[] = {argv[2], "10", "10000", NULL};
    pid_t pid;
    int status;
    if (argc > 3 && unlink(argv[3]))
        return 7;
    if (!strcmp(how, "posix_spawn")) {
        if (posix_spawn(&pid, argv[2], NULL, NULL, words, variables))
            return 6;
    } else if (!strcmp(how, "posix_spawnp")) {
        if (posix_spawnp(&pid, strrchr(argv[2], '/') + 1, NULL, NULL, words, variables))
            return 6;
    } else if (!strcmp(how, "system")) {
        char line[4096];
        snprintf(line, sizeof line, "exec '%s' 10 10000", argv[2]);
        return WEXITSTATUS(system(line));
    } else if (!strcmp(how, "popen")) {
        char line[4096];
        snprintf(line, sizeof line, "exec '%s' 10 10000", argv[2]);
        FILE *pipe = popen(line, "r");
        while (fgets(line, sizeof line, pipe))
            fputs(line, stdout);
        return WEXITSTATUS(pclose(pipe));
    } else if (!strncmp(how, "vfork-", 6)) {
        if (!(pid = vfork()))
            child(how + 6, argv[2]);
    } else if (!(pid = fork()))
        child(how, argv[2]);
    return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 5;
}
