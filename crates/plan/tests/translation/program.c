/* Prints the addresses of its static objects and calls for a test, which
   knows the calls' line numbers: keep them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#ifndef COUNT
#define COUNT 131072
#endif

double cvar[COUNT];
static char tiny[100];
extern double library_table[];
const char *library_tell(void);

__attribute__((noinline)) static unsigned long in_file(const void *address) {
    Dl_info info;
    struct link_map *module;
    dladdr1(address, &info, (void **)&module, RTLD_DL_LINKMAP);
    return (unsigned long)address - module->l_addr;
}

__attribute__((noinline)) void tell(const char *name) {
    printf("%s %lu\n", name, in_file(__builtin_return_address(0)));
}

#ifdef REBUILT
__attribute__((noinline)) void added(void) { tell("added"); tell("added"); }
#endif

#ifndef RENAMED
#define grow_name grow
#else
#define grow_name enlarge
#endif
__attribute__((noinline)) void grow_name(void) {
    tell("first"); /* line 38 */
    printf("between\n");
    tell("second"); /* line 40 */
}

static inline __attribute__((always_inline)) void inlined(void) {
    tell("inlined"); /* line 44 */
}

int main(void) {
    tiny[0] = (char)library_table[0];
#ifdef REBUILT
    added();
#endif
    grow_name();
    inlined(); /* line 53 */
    printf("cvar %lu\ntiny %lu\nlibrary_table %lu\n%s\n", in_file(cvar), in_file(tiny), in_file(library_table), library_tell());
    return 0;
}
