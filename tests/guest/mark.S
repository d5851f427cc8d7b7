# mark begin|end: marks the part of a guest's run that is traced (trace --markers -- qemu-system-x86_64 …).
# Build: gcc -nostdlib -static -o mark mark.S. The static program needs no libraries in the guest. The marks are no-op
# instructions, such as nopl 0x314d504e(%rax,%rax,1); docs/reference/recording-format.md lists them.
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
