# mark begin|end: says in a guest what is to be traced (trace --markers -- qemu-system-x86_64 …).
# gcc -nostdlib -static -o mark mark.S: it needs nothing of where it runs. The marks are instructions
# that do nothing, nopl 0x314d504e(%rax,%rax,1) and its like; docs/reference/recording-format.md has them.
    .globl _start
_start:
    mov 16(%rsp), %rax
    cmpb $'b', (%rax)
    jne 1f
    .byte 0x0f, 0x1f, 0x84, 0x00
    .ascii "NPM1"
    jmp 2f
1:  .byte 0x0f, 0x1f, 0x84, 0x00
    .ascii "NPM2"
2:  xor %edi, %edi
    mov $60, %eax
    syscall
    .section .note.GNU-stack, "", @progbits
