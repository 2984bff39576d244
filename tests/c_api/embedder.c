/* A program with a Python of its own, loaded as a plugin would: out of sight of other libraries. It keeps Python's lock
 * while it calls. Arguments: libpython, and the program name that its packages follow from. */
#define _XOPEN_SOURCE 700
#include <dlfcn.h>
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* find(void* library, const char* name, void* function) {
    void* found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found;
}

int main(int count, char** arguments) {
    void (*start)(int), (*set_program)(const wchar_t*);
    int (*run)(const char*);
    wchar_t* (*decode)(const char*, size_t*);
    void* library = count == 3 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL || !find(library, "Py_InitializeEx", &start) || !find(library, "PyRun_SimpleString", &run) ||
        !find(library, "Py_SetProgramName", &set_program) || !find(library, "Py_DecodeLocale", &decode))
        return 2;
    set_program(decode(arguments[2], NULL));
    start(1);
    run("mine = 42");
    const int result = pcclInit();
    printf("%d %s\n", result, result != 0 ? pcclGetLastErrorText() : "");
    fflush(stdout);
    return run(
        "import sys; assert mine == 42 and 'packages' not in globals(); print('pccl' in sys.modules, flush=True)");
}
