# A guest without a kernel, for the tracer's test: it maps its first GiB three times, runs where Linux
# has its image, and between the marks stores to 1 MiB where Linux has its direct map, a line of
# 64 bytes at a time, then loads the same in the lower half, and switches itself off.
# gcc -c bare.S; ld -N -Ttext=0x100000 -e start; objcopy -O elf32-i386: multiboot, as QEMU's -kernel takes it.
    .set TABLES, 0x200000
    .set IMAGE, 0xffffffff80000000
    .set DIRECT_MAP, 0xffff888000000000
    .set DATA, 0x400000
    .set LINES, 16384

    .code32
    .align 4
    .long 0x1badb002, 0, -0x1badb002
    .globl start
start:
    # The upper level has one table three times: identity, direct map, image.
    movl $(TABLES + 0x1003), TABLES
    movl $(TABLES + 0x1003), TABLES + 8 * 273
    movl $(TABLES + 0x1003), TABLES + 8 * 511
    # A page of 1 GiB, writable, first and where the image is.
    movl $0x83, TABLES + 0x1000
    movl $0x83, TABLES + 0x1000 + 8 * 510
    mov %cr4, %eax
    or $0x20, %eax
    mov %eax, %cr4
    mov $TABLES, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx
    rdmsr
    or $0x100, %eax
    wrmsr
    mov %cr0, %eax
    or $0x80000000, %eax
    mov %eax, %cr0
    lgdt descriptors_at
    ljmp $8, $long

    .code64
long:
    movabs $IMAGE, %rax
    add $high, %rax
    jmp *%rax
high:
    .byte 0x0f, 0x1f, 0x84, 0x00
    .ascii "NPM1"
    # The rest of the mark's block is not traced.
    jmp 4f
4:  movabs $(DIRECT_MAP + DATA), %rdi
    mov $LINES, %ecx
1:  mov %rcx, (%rdi)
    add $64, %rdi
    dec %ecx
    jnz 1b
    mov $DATA, %edi
    mov $LINES, %ecx
2:  mov (%rdi), %rax
    add $64, %rdi
    dec %ecx
    jnz 2b
    .byte 0x0f, 0x1f, 0x84, 0x00
    .ascii "NPM2"
    # Off, by ACPI's register of the q35.
    mov $0x604, %edx
    mov $0x2000, %eax
    out %ax, %dx
3:  hlt
    jmp 3b

    .align 8
descriptors:
    .quad 0, 0x00af9a000000ffff
descriptors_at:
    .word 15
    .long descriptors
    .section .note.GNU-stack, "", @progbits
