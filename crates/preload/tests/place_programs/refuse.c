// Runs a command under a seccomp filter that refuses mbind, move_pages and get_mempolicy, as container profiles do. The
// macro ONLY names a single system call to refuse instead.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef ONLY
#define FIRST SYS_mbind
#define SECOND SYS_move_pages
#define THIRD SYS_get_mempolicy
#else
#define FIRST ONLY
#define SECOND ONLY
#define THIRD ONLY
#endif

int main(int argc, char **argv) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FIRST, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SECOND, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIRD, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 125;
    execvp(argv[1], argv + 1);
    return 127;
}
