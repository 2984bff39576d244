/* Where a Python may lie: the one that PCCL_PYTHON names, else the one whose package this library is part of, else any
 * that the loader knows. Nothing is asked of PATH or of PYTHON… variables, which are the program's. Must not know how a
 * Python is started. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest.h"

#ifndef PCCL_PYTHON_VERSION
#error "the version of the Python that the package is built for, like 3.11"
#endif
#ifndef PCCL_MULTIARCH
#define PCCL_MULTIARCH ""
#endif

enum { VERSION_BYTES = 16, LINE_BYTES = PATH_MAX + 64 };

/* Like snprintf, but what does not fit is a failure: half a path is another path. */
#define PUT(room, ...) ((size_t)snprintf(room, sizeof(room), __VA_ARGS__) < sizeof(room))

static bool exists(const char* path) {
    return access(path, F_OK) == 0;
}

/* Cut the last name off a path. False when there is none to cut. */
static bool up(char* path) {
    char* slash = strrchr(path, '/');
    if (slash == NULL || slash == path) return false;
    *slash = '\0';
    return true;
}

/* A line "key = value" of pyvenv.cfg. */
static bool value_of(const char* line, const char* key, char* value, size_t room) {
    const size_t length = strlen(key);
    while (isspace((unsigned char)*line)) line++;
    if (strncmp(line, key, length) != 0) return false;
    line += length;
    while (*line == ' ' || *line == '\t') line++;
    if (*line++ != '=') return false;
    while (*line == ' ' || *line == '\t') line++;
    if (strlen(line) >= room) return false;
    strcpy(value, line);
    value[strcspn(value, "\r\n")] = '\0';
    return true;
}

/* "3.11" of "3.11.7" or "python3.11"; untouched if that is no version. */
static void take_version(const char* text, char version[VERSION_BYTES]) {
    unsigned major, minor;
    const char* digits = strpbrk(text, "0123456789");
    if (digits != NULL && sscanf(digits, "%u.%u", &major, &minor) == 2 && major < 100 && minor < 1000)
        snprintf(version, VERSION_BYTES, "%u.%u", major, minor);
}

/* The prefix with the standard library: another one for a virtual environment, the same otherwise. */
static bool base_of(const char* prefix, char base[PATH_MAX], char version[VERSION_BYTES]) {
    char path[PATH_MAX], line[LINE_BYTES], value[PATH_MAX];
    if (!PUT(path, "%s/pyvenv.cfg", prefix)) return false;
    snprintf(base, PATH_MAX, "%s", prefix);
    FILE* file = fopen(path, "re");
    if (file == NULL) return true;
    while (fgets(line, sizeof line, file) != NULL) {
        if (value_of(line, "home", value, sizeof value)) {
            snprintf(base, PATH_MAX, "%s", value);
            up(base);
        } else if (value_of(line, "version", value, sizeof value) ||
                   value_of(line, "version_info", value, sizeof value)) {
            take_version(value, version);
        }
    }
    fclose(file);
    return true;
}

static bool library_in(const char* base, const char* version, char library[PATH_MAX]) {
    static const char* const folders[] = {"lib", "lib/" PCCL_MULTIARCH, "lib64"};
    for (size_t place = 0; place < sizeof folders / sizeof *folders; place++) {
        const int length = snprintf(library, PATH_MAX, "%s/%s/libpython%s.so.1.0", base, folders[place], version);
        if (length < PATH_MAX && exists(library)) return true;
    }
    return false;
}

/* A prefix with a libpython. `version` is what is expected, until the prefix says otherwise. */
static bool in_prefix(const char* prefix, char version[VERSION_BYTES], struct capi_place* found) {
    char base[PATH_MAX];
    if (!base_of(prefix, base, version) || !PUT(found->program, "%s/bin/python%s", prefix, version)) return false;
    return library_in(base, version, found->library);
}

/* What PCCL_PYTHON names: an executable, a virtual environment or a prefix. */
static bool asked_for(const char* asked, struct capi_place* found, char* text) {
    char prefix[PATH_MAX], real[PATH_MAX], version[VERSION_BYTES] = PCCL_PYTHON_VERSION;
    struct stat kind;
    found->packages[0] = '\0';
    if (stat(asked, &kind) == 0 && PUT(prefix, "%s", asked)) {
        if (!S_ISDIR(kind.st_mode)) {
            up(prefix);
            up(prefix);
            if (realpath(asked, real) != NULL) take_version(strrchr(real, '/'), version);
        }
        if (in_prefix(prefix, version, found)) return true;
        /* /usr/local/bin/python3 may be a link to anywhere. */
        if (!S_ISDIR(kind.st_mode) && realpath(asked, real) != NULL) {
            up(real);
            up(real);
            if (in_prefix(real, version, found)) return true;
        }
    }
    snprintf(
        text, CAPI_TEXT_BYTES,
        "PCCL_PYTHON must name a Python with a shared library libpython%s.so.1.0, got %.512s; name its executable or "
        "its virtual environment, and install libpython%s if it has none",
        version, asked, version);
    return false;
}

/* We lie in …/lib/python3.11/site-packages/pccl/lib. */
static bool around(const char* self, struct capi_place* found) {
    char prefix[PATH_MAX], version[VERSION_BYTES] = PCCL_PYTHON_VERSION;
    if (!PUT(prefix, "%s", self) || !up(prefix) || !up(prefix) || !up(prefix)) return false;
    strcpy(found->packages, prefix);
    return up(prefix) && up(prefix) && up(prefix) && in_prefix(prefix, version, found);
}

bool capi_find_python(struct capi_place* found, char* text) {
    const char* asked = getenv("PCCL_PYTHON");
    if (asked != NULL && *asked != '\0') return asked_for(asked, found, text);
    Dl_info self;
    char real[PATH_MAX];
    found->packages[0] = found->program[0] = '\0';
    if (dladdr((const void*)&pcclInit, &self) != 0 && self.dli_fname != NULL) {
        /* As it was loaded, then where the links lead: packages may be links into a cache, or we a link into packages.
         */
        if (strchr(self.dli_fname, '/') != NULL && around(self.dli_fname, found)) return true;
        if (realpath(self.dli_fname, real) != NULL && around(real, found)) return true;
    }
    found->program[0] = '\0';
    snprintf(found->library, sizeof found->library, "libpython" PCCL_PYTHON_VERSION ".so.1.0");
    return true; /* perhaps; the loader will say */
}

/* For a libpython that the loader found: the prefix with its standard library, without which its start would end us. */
bool capi_find_home(struct capi_place* found, const char* loaded_from, char* text) {
    char prefix[PATH_MAX], real[PATH_MAX], landmark[PATH_MAX], version[VERSION_BYTES] = PCCL_PYTHON_VERSION;
    static const char* const folders[] = {"lib", "lib64"};
    const char* name = strstr(loaded_from, "libpython");
    if (name != NULL) take_version(name, version);
    const char* path = realpath(loaded_from, real) != NULL ? real : loaded_from;
    snprintf(prefix, sizeof prefix, "%s", path);
    while (up(prefix)) {
        for (size_t place = 0; place < sizeof folders / sizeof *folders; place++) {
            if (!PUT(landmark, "%s/%s/python%s/os.py", prefix, folders[place], version) || !exists(landmark)) continue;
            return found->program[0] != '\0' || PUT(found->program, "%s/bin/python%s", prefix, version);
        }
    }
    snprintf(text, CAPI_TEXT_BYTES, "%.512s has no standard library: there is no lib/python%s/os.py beside or above it",
             loaded_from, version);
    return false;
}
