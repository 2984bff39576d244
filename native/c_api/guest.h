/* What the files of this folder know of each other. libpccl.so is a guest in a program of others: it finds a Python,
 * imports pccl.c_api there, and carries calls in and answers out. It decides nothing about runs, peers or tensors.
 *
 *   functions.c   the public functions: each packs its arguments
 *   porters.c     threads of ours that carry calls into Python, so that the program's own never run it
 *   python.c      which Python, and its start
 *   places.c      where a Python may lie
 *   manners.c     signals, the locale and forks are left as they were found
 */
#ifndef PCCL_GUEST_H
#define PCCL_GUEST_H

#include <limits.h>
#include <pccl.h>

enum { CAPI_TEXT_BYTES = 2048 }; /* of a sentence; the longest ones name eight peers and their calls */

/* In the order of `CALLS` in src/pccl/c_api/calls.py. */
enum capi_call {
    CALL_INIT,
    CALL_GET_BUILD_INFO,
    CALL_CREATE_COMMUNICATOR,
    CALL_DESTROY_COMMUNICATOR,
    CALL_CONNECT,
    CALL_GET_ATTRIBUTE,
    CALL_UPDATE_TOPOLOGY,
    CALL_ARE_PEERS_PENDING,
    CALL_OPTIMIZE_TOPOLOGY,
    CALL_ALL_REDUCE,
    CALL_ALL_REDUCE_ASYNC,
    CALL_AWAIT_ASYNC_REDUCE,
    CALL_ALL_REDUCE_MULTIPLE_WITH_RETRY,
    CALL_SYNCHRONIZE_SHARED_STATE,
    CALL_CREATE_MASTER,
    CALL_RUN_MASTER,
    CALL_MASTER_AWAIT_TERMINATION,
    CALL_DESTROY_MASTER,
    CALLS
};

enum { CAPI_ARGUMENTS_MAX = 5 };

/* Into Python and back: 0 if it did not run, else the result code plus one. A callback that fails before its first line
 * returns 0, and that must not be success. */
typedef int (*capi_door)(int call, const uint64_t* arguments, char* text);

/* Filled by pccl.c_api. */
struct capi_table {
    uint64_t calls;      /* how many we know; one that knows others refuses */
    uint64_t text_bytes; /* room for a sentence */
    capi_door door;
    int64_t interrupts; /* where the handles of masters to stop are written to; -1 before there is one */
};

/* Where a Python lies. */
struct capi_place {
    char library[PATH_MAX];  /* libpython, as a path or a name that the loader knows */
    char program[PATH_MAX];  /* what it takes for its executable: its prefix follows from that */
    char packages[PATH_MAX]; /* the folder of packages that we are in; empty if another Python was asked for */
};

/* porters.c: make a call, on another thread, and wait. */
pcclResult_t capi_run(enum capi_call call, const uint64_t* arguments, size_t count);
const char* capi_last_text(void);
bool capi_forked(void);

/* python.c */
int capi_enter(enum capi_call call, const uint64_t* arguments, char* text); /* by a porter */
void* capi_release_python(void); /* a thread of a program in Python may hold its lock, and no porter gets in */
void capi_take_python_back(void* released);
int capi_interrupts(void);

/* places.c: false with the sentence if there is none. */
bool capi_find_python(struct capi_place* found, char* text);
bool capi_find_home(struct capi_place* found, const char* loaded_from, char* text);

/* manners.c */
struct capi_manners;
struct capi_manners* capi_behold(void);             /* before Python starts; NULL without memory */
void capi_restore(struct capi_manners* remembered); /* afterwards */
void capi_block_signals(void* before);              /* `before` is a sigset_t */

#endif
