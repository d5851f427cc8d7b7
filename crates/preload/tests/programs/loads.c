/* Loads, uses and unloads a plugin many times. Only this program's run path finds the plugin. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    for (int i = 0; i < 50; i++) {
        void *plugin = dlopen("libplugin.so", RTLD_NOW);
        if (!plugin)
            return printf("%s\n", dlerror()), 1;
        void *(*allocate)(void);
        *(void **)&allocate = dlsym(plugin, "plugin_allocate");
        free(allocate());
        free(malloc(70003));
        dlclose(plugin);
    }
    puts(dlopen("libnosuch.so", RTLD_NOW) ? "found" : "not found");
    return 0;
}
