/* What a guest leaves as it was: what signals do, which of them are blocked, the locale. Must not know
 * how a Python is found or started. */
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "guest.h"

struct capi_manners {
    struct sigaction interrupt; /* what SIGINT did, if we hold it */
    bool holds_interrupt;
    char* locale;
};

static volatile sig_atomic_t interrupted;

static void remember_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

void capi_block_signals(void* before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* Python takes SIGINT as soon as its module `signal` is imported, whatever it was told, unless the program handles it
 * already (cpython issue 111400); it takes no other signal. So until then it is handled, and one that comes meanwhile
 * is sent again. */
static void hold_interrupt(struct capi_manners* now) {
    struct sigaction ours;
    if (sigaction(SIGINT, NULL, &now->interrupt) != 0 || now->interrupt.sa_handler != SIG_DFL) return;
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = remember_interrupt;
    ours.sa_flags = SA_RESTART;
    interrupted = 0;
    now->holds_interrupt = sigaction(SIGINT, &ours, NULL) == 0;
}

/* Unless another thread of the program has set a handler meanwhile. */
static void let_interrupt_go(const struct capi_manners* remembered) {
    struct sigaction now;
    const bool ours = sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == remember_interrupt;
    if (remembered->holds_interrupt && ours) sigaction(SIGINT, &remembered->interrupt, NULL);
    if (remembered->holds_interrupt && interrupted) kill(getpid(), SIGINT);
}

struct capi_manners* capi_behold(void) {
    struct capi_manners* now = calloc(1, sizeof *now);
    if (now == NULL) return NULL;
    const char* locale = setlocale(LC_CTYPE, NULL);
    now->locale = locale != NULL ? strdup(locale) : NULL;
    hold_interrupt(now);
    return now;
}

void capi_restore(struct capi_manners* remembered) {
    let_interrupt_go(remembered);
    if (remembered->locale != NULL) setlocale(LC_CTYPE, remembered->locale);
    free(remembered->locale);
    free(remembered);
}
