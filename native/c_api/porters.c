/* Porters: threads of ours that carry calls into Python, one for each call that is under way.
 *
 * Why the caller's thread does not do so itself: it has the program's signals unblocked, and must keep them so, or
 * Ctrl-C would not end a program that waits in a call. Threads that Python starts inherit the mask of the one that
 * starts them, and no signal of the program may land on those. A porter has all signals blocked from its birth, and a
 * stack that is long enough for Python. The caller waits for a semaphore: its handlers run, and may do all that they
 * may do elsewhere. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest.h"

/* What Python gets on its main thread nearly everywhere. The program's default may be far less, and Python, which
 * counts its recursion in calls, would run off the end. Reserved, not used: pages come when they are touched. */
#define STACK_BYTES ((size_t)8 << 20)

struct porter {
    sem_t called, answered;
    enum capi_call call;
    uint64_t arguments[CAPI_ARGUMENTS_MAX];
    int result;
    char text[CAPI_TEXT_BYTES];
    struct porter* next; /* of the idle ones */
};

static pthread_mutex_t idle_lock =
    PTHREAD_MUTEX_INITIALIZER; /* only with all signals blocked: no handler finds it held */
static struct porter* idle;
static _Atomic pid_t owner; /* the process that made the first call; 0 before */
static __thread char last_text[CAPI_TEXT_BYTES];

const char* capi_last_text(void) {
    return last_text;
}

bool capi_forked(void) {
    return owner != 0 && owner != getpid();
}

static void await(sem_t* semaphore) {
    while (sem_wait(semaphore) == -1 && errno == EINTR) {
    }
}

static void* carry(void* given) {
    struct porter* me = given;
    for (;;) {
        await(&me->called);
        me->text[0] = '\0';
        me->result = capi_enter(me->call, me->arguments, me->text);
        sem_post(&me->answered);
    }
    return NULL;
}

static struct porter* hire(void) {
    struct porter* porter = calloc(1, sizeof *porter);
    pthread_t thread;
    pthread_attr_t attributes;
    if (porter == NULL) return NULL;
    sem_init(&porter->called, 0, 0);
    sem_init(&porter->answered, 0, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    const int failed = pthread_create(&thread, &attributes, carry, porter);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        free(porter);
        return NULL;
    }
    pthread_detach(thread);
    return porter;
}

static struct porter* take(void) {
    pthread_mutex_lock(&idle_lock);
    struct porter* porter = idle;
    if (porter != NULL) idle = porter->next;
    pthread_mutex_unlock(&idle_lock);
    return porter != NULL ? porter : hire();
}

static void give_back(struct porter* porter) {
    pthread_mutex_lock(&idle_lock);
    porter->next = idle;
    idle = porter;
    pthread_mutex_unlock(&idle_lock);
}

static pcclResult_t fail(pcclResult_t result, const char* sentence) {
    snprintf(last_text, sizeof last_text, "%s", sentence);
    return result;
}

/* The caller's signals are blocked but for the wait itself. */
static pcclResult_t send(enum capi_call call, const uint64_t* arguments, size_t count, const sigset_t* callers) {
    struct porter* porter = take();
    if (porter == NULL)
        return fail(pcclInternalError, "no thread could be started for this call: the limit is reached");
    porter->call = call;
    memcpy(porter->arguments, arguments, count * sizeof *arguments);
    sem_post(&porter->called);
    sigset_t all;
    pthread_sigmask(SIG_SETMASK, callers, &all);
    await(&porter->answered);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    const pcclResult_t result = (pcclResult_t)porter->result;
    if (result != pcclSuccess) fail(result, porter->text);
    give_back(porter);
    return result;
}

pcclResult_t capi_run(enum capi_call call, const uint64_t* arguments, size_t count) {
    pid_t none = 0;
    atomic_compare_exchange_strong(&owner, &none, getpid());
    if (capi_forked())
        return fail(pcclInvalidUsage,
                    "this process was forked from one that used the library, and has no part in it; fork before the "
                    "first call, or call exec in the child");
    /* A thread that is cancelled in the middle would leave its porter behind. */
    int cancellable;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable);
    sigset_t callers;
    capi_block_signals(&callers);
    void* released = capi_release_python();
    const pcclResult_t result = send(call, arguments, count, &callers);
    capi_take_python_back(released);
    pthread_sigmask(SIG_SETMASK, &callers, NULL);
    pthread_setcancelstate(cancellable, NULL);
    return result;
}
