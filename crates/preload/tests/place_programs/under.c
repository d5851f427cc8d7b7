// Runs a command with MPOL_PREFERRED for node 0, as `numactl --preferred=0` does.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    const int preferred = 1;
    unsigned long nodes = 1;
    if (syscall(SYS_set_mempolicy, preferred, &nodes, 64)) return 125;
    execvp(argv[1], argv + 1);
    return 127;
}
