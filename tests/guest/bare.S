# A guest without a kernel, for the tracer's test. It maps its first GiB at three addresses and runs at the address of
# Linux's image. Between the marks it stores to 1 MiB of Linux's direct map, one 64-byte line at a time, and then loads
# these lines through the lower half of the address space. Then it switches itself off.
# gcc -c bare.S; ld -N -Ttext=0x100000 -e start; objcopy -O elf32-i386, because QEMU's -kernel needs multiboot.
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
    # Three entries of the upper level share one table: identity map, direct map, image.
    movl $(TABLES + 0x1003), TABLES
    movl $(TABLES + 0x1003), TABLES + 8 * 273
    movl $(TABLES + 0x1003), TABLES + 8 * 511
    # A writable page of 1 GiB, at the table's start and at the image's entry.
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
    # The jump begins a new block, because the tracer skips the block that has the mark.
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
    # Power off by the ACPI register of QEMU's q35 machine.
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
