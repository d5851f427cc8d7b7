char library_table[1 << 19] __attribute__((aligned(4096)));
