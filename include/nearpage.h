/* nearpage.h: marks the stable phase of a program from inside the program.
 *
 *     nearpage_begin();      after initialisation and warm-up
 *     ...                    the work that is to be profiled
 *     nearpage_end();
 *
 * `nearpage record` then profiles only this phase, and `nearpage lab` counts only this phase. Without nearpage, the
 * functions do nothing. The program need not link to a library: the first call looks the function up by dlsym. (A
 * weak `nearpage_begin` would not suffice: the linker sets it to null in position-dependent programs.) For C and C++,
 * in shared and static programs. With a C library older than 2.34, link with -ldl, or define NEARPAGE_NO_DLSYM to
 * compile without marks. */
#ifndef NEARPAGE_H
#define NEARPAGE_H

#if defined(__linux__) && !defined(NEARPAGE_NO_DLSYM)

#ifdef __cplusplus
extern "C" {
#endif

/* Declared as in <dlfcn.h>, but weak, because static programs may lack dlsym. */
extern void *dlsym(void *__restrict handle, const char *__restrict name)
#ifdef __cplusplus
    throw()
#endif
    __attribute__((weak));

#ifdef __cplusplus
}
#endif

typedef void (*nearpage_mark)(void);

/* A no-op instruction, `nopl 0x314d504e(%rax,%rax,1)` for number 1. It marks the phase for an emulator of a whole
 * machine, in which no preload library takes part. The alignment keeps the instruction within one
 * page. */
#if defined(__x86_64__) && defined(__GNUC__)
#define NEARPAGE_INSTRUCTION(number)                                                                \
    __asm__ volatile(".balign 8\n\t.byte 0x0f, 0x1f, 0x84, 0x00\n\t.ascii \"NPM" number "\"" ::: "memory")
#else
#define NEARPAGE_INSTRUCTION(number) ((void)0)
#endif

/* Looks `name` up once. Threads that do so at the same time find the same function. */
static inline void nearpage_call(const char *name, nearpage_mark *mark, int *looked_up) {
    if (!__atomic_load_n(looked_up, __ATOMIC_ACQUIRE)) {
        /* RTLD_DEFAULT is a null handle. */
        void *found = dlsym ? dlsym((void *)0, name) : (void *)0;
        nearpage_mark function;
        __builtin_memcpy(&function, &found, sizeof function);
        __atomic_store_n(mark, function, __ATOMIC_RELAXED);
        __atomic_store_n(looked_up, 1, __ATOMIC_RELEASE);
    }
    nearpage_mark function = __atomic_load_n(mark, __ATOMIC_RELAXED);
    if (function)
        function();
}

static inline void nearpage_begin(void) {
    static nearpage_mark mark;
    static int looked_up;
    nearpage_call("nearpage_begin", &mark, &looked_up);
    NEARPAGE_INSTRUCTION("1");
}

static inline void nearpage_end(void) {
    static nearpage_mark mark;
    static int looked_up;
    NEARPAGE_INSTRUCTION("2");
    nearpage_call("nearpage_end", &mark, &looked_up);
}

#else

static inline void nearpage_begin(void) {}
static inline void nearpage_end(void) {}

#endif
#endif
