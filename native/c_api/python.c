/* The Python of this process: the one that runs already, else one that is started here and never ended. Owns its
 * functions, found by name so that we are linked to no libpython, and the door into pccl.c_api. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest.h"

struct python {
    int (*Py_IsInitialized)(void);
    int (*PyGILState_Check)(void);
    void* (*PyGILState_GetThisThreadState)(void);
    int (*PyGILState_Ensure)(void);
    void (*PyGILState_Release)(int);
    void* (*PyEval_SaveThread)(void);
    void (*PyEval_RestoreThread)(void*);
    int (*PyRun_SimpleString)(const char*);
    void (*PyOS_BeforeFork)(void);
    void (*PyOS_AfterFork_Parent)(void);
    void (*PyOS_AfterFork_Child)(void);
};

static struct python python;
static struct capi_table table = {CALLS, CAPI_TEXT_BYTES, NULL, -1};
static atomic_bool loaded;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER; /* held by porters alone */

/* dlsym gives what ISO C does not let become a function, so its bits are copied. */
static bool take(void* library, const char* name, void* function) {
    void* found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

#define TAKE(name) take(library, #name, &into->name)

static bool take_all(void* library, struct python* into) {
    return TAKE(Py_IsInitialized) && TAKE(PyGILState_Check) && TAKE(PyGILState_GetThisThreadState) &&
           TAKE(PyGILState_Ensure) && TAKE(PyGILState_Release) && TAKE(PyEval_SaveThread) &&
           TAKE(PyEval_RestoreThread) && TAKE(PyRun_SimpleString) && TAKE(PyOS_BeforeFork) &&
           TAKE(PyOS_AfterFork_Parent) && TAKE(PyOS_AfterFork_Child);
}

/* ── one that runs already ───────────────────────────────────────────────────────────────────────────────────────── */

static int note_libpython(struct dl_phdr_info* each, size_t size, void* given) {
    (void)size;
    if (each->dlpi_name == NULL || strstr(each->dlpi_name, "libpython3") == NULL) return 0;
    snprintf(given, PATH_MAX, "%s", each->dlpi_name);
    return 1;
}

static bool runs(void* library, struct python* into) {
    return take_all(library, into) && into->Py_IsInitialized();
}

/* One that a plugin has loaded for itself is not seen by dlsym; a second Python beside it would take its symbols. */
static bool find_running(struct python* into) {
    if (runs(RTLD_DEFAULT, into)) return true;
    char path[PATH_MAX] = "";
    if (dl_iterate_phdr(note_libpython, path) == 0) return false;
    void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (library == NULL) return false;
    const bool found = runs(library, into);
    if (found) dlopen(path, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    dlclose(library);
    return found;
}

void* capi_release_python(void) {
    struct python now;
    if (loaded) {
        now = python;
        if (!now.Py_IsInitialized()) return NULL;
    } else if (!find_running(&now)) {
        return NULL;
    }
    /* The check alone is always true once there are subinterpreters. */
    const bool held = now.PyGILState_GetThisThreadState() != NULL && now.PyGILState_Check();
    return held ? now.PyEval_SaveThread() : NULL;
}

void capi_take_python_back(void* released) {
    struct python now;
    if (released != NULL && find_running(&now)) now.PyEval_RestoreThread(released);
}

/* ── one that is started here ────────────────────────────────────────────────────────────────────────────────────── */

/* fork() of a program in C runs none of Python's hooks, and a child that keeps our sockets hides our death. */
static _Thread_local int forking;
static void before_fork(void) {
    forking = python.PyGILState_Ensure();
    python.PyOS_BeforeFork();
}
static void after_fork_in_parent(void) {
    python.PyOS_AfterFork_Parent();
    python.PyGILState_Release(forking);
}
static void after_fork_in_child(void) {
    python.PyOS_AfterFork_Child();
    python.PyGILState_Release(forking);
}

static bool set_flag(void* library, const char* name) {
    int* flag = dlsym(library, name);
    if (flag != NULL) *flag = 1;
    return flag != NULL;
}

/* Isolated: what PYTHONHOME and its kin say is meant for other Pythons, and a wrong one would end the process. UTF-8,
 * because a program may run in the locale "C". No signal handlers. */
static bool start(void* library, const struct capi_place* place, char* text) {
    void (*initialize)(int);
    void (*set_program)(const wchar_t*);
    wchar_t* (*decode)(const char*, size_t*);
    const bool known = set_flag(library, "Py_IgnoreEnvironmentFlag") && set_flag(library, "Py_IsolatedFlag") &&
                       set_flag(library, "Py_UTF8Mode") && take(library, "Py_InitializeEx", &initialize) &&
                       take(library, "Py_SetProgramName", &set_program) && take(library, "Py_DecodeLocale", &decode);
    if (!known) {
        snprintf(text, CAPI_TEXT_BYTES, "%.512s is a Python that this library does not know how to start",
                 place->library);
        return false;
    }
    wchar_t* program = decode(place->program, NULL); /* kept: Python does not copy it */
    if (program == NULL) {
        snprintf(text, CAPI_TEXT_BYTES, "the path of Python cannot be decoded: %.512s", place->program);
        return false;
    }
    set_program(program);
    initialize(0);
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    python.PyEval_SaveThread();
    return true;
}

static bool open_and_start(struct capi_place* place, char* text) {
    if (!capi_find_python(place, text)) return false;
    /* Global, or extension modules such as _socket do not find Python's symbols. */
    void* library = dlopen(place->library, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        const char* why = dlerror();
        snprintf(text, CAPI_TEXT_BYTES,
                 "no Python was found: none beside this library, and %.512s. Install libpython" PCCL_PYTHON_VERSION
                 ", or set PCCL_PYTHON to the executable of a Python that has the package pccl and a shared library",
                 why != NULL ? why : "the loader does not say why");
        return false;
    }
    Dl_info self;
    if (!take_all(library, &python) || dladdr((void*)python.Py_IsInitialized, &self) == 0) {
        snprintf(text, CAPI_TEXT_BYTES, "%.512s is not a Python that this library can use", place->library);
        return false;
    }
    return capi_find_home(place, self.dli_fname, text) && start(library, place, text);
}

/* ── pccl.c_api ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* In a namespace of its own: that of the program, if this is its Python, stays as it is. */
static const char IMPORT[] =
    "exec('''\n"
    "try:\n"
    "    import sys\n"
    "    if packages:\n"
    "        import os, site\n"
    "        if os.fsdecode(packages) not in sys.path:\n"
    "            site.addsitedir(os.fsdecode(packages))\n"
    "    from pccl import c_api\n"
    "    c_api.open_door(table)\n"
    "except BaseException as error:\n"
    "    import ctypes\n"
    "    version = sys.version.split()[0]\n"
    "    why = f'Python {version} in {sys.prefix} cannot import pccl.c_api: {type(error).__name__}: {error}; install "
    "'\n"
    "    why += 'the package pccl there, or set PCCL_PYTHON to a Python that has it'\n"
    "    words = why.encode('utf-8', 'replace')[:room - 1]\n"
    "    ctypes.memmove(text, words, len(words))\n"
    "''', {'packages': bytes.fromhex('%s'), 'table': %llu, 'text': %llu, 'room': %d})\n";

static bool import(const char* packages, char* text) {
    const size_t length = strlen(packages), room = sizeof IMPORT + 2 * length + 128;
    char *hex = calloc(1, 2 * length + 1), *code = malloc(room);
    if (hex != NULL && code != NULL) {
        for (size_t at = 0; at < length; at++) sprintf(hex + 2 * at, "%02x", (unsigned char)packages[at]);
        snprintf(code, room, IMPORT, hex, (unsigned long long)(uintptr_t)&table, (unsigned long long)(uintptr_t)text,
                 CAPI_TEXT_BYTES);
        memset(text, 0, CAPI_TEXT_BYTES);
        const int gil = python.PyGILState_Ensure();
        python.PyRun_SimpleString(code);
        python.PyGILState_Release(gil);
    }
    free(hex);
    free(code);
    if (table.door == NULL && text[0] == '\0') snprintf(text, CAPI_TEXT_BYTES, "pccl.c_api could not be imported");
    return table.door != NULL;
}

static bool load(char* text) {
    static bool started; /* kept between attempts: the package may be installed meanwhile */
    static struct capi_place place;
    struct capi_manners* before = capi_behold();
    if (before == NULL) {
        snprintf(text, CAPI_TEXT_BYTES, "there is no memory left");
        return false;
    }
    bool there = started || find_running(&python);
    if (!there) there = started = open_and_start(&place, text);
    loaded = there && import(started ? place.packages : "", text);
    capi_restore(before);
    return loaded;
}

/* A porter keeps its place in Python: making one for each call would cost as much as the call. */
static void settle_in(void) {
    static __thread bool settled;
    if (settled) return;
    settled = true;
    python.PyGILState_Ensure();
    python.PyEval_SaveThread();
}

int capi_enter(enum capi_call call, const uint64_t* arguments, char* text) {
    if (!loaded) {
        pthread_mutex_lock(&loading);
        const bool there = loaded || load(text);
        pthread_mutex_unlock(&loading);
        if (!there) return pcclInternalError;
    }
    if (!python.Py_IsInitialized()) {
        snprintf(text, CAPI_TEXT_BYTES, "the Python of this process has ended, and with it all that this library had");
        return pcclInternalError;
    }
    settle_in();
    const int answer = table.door((int)call, arguments, text);
    if (answer > 0) return answer - 1;
    snprintf(text, CAPI_TEXT_BYTES, "the call did not run; see what Python has written to stderr");
    return pcclInternalError;
}

int capi_interrupts(void) {
    return (int)table.interrupts;
}
