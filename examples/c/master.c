/* A master: decides which peers are in and which collective runs, until Ctrl-C or SIGTERM.
 *
 *   cc -std=c99 master.c $(pccl config --cflags --libs) -o master && ./master [PORT]
 *
 * Without a secret every machine that reaches the port may join: this one listens on loopback only. For other machines
 * let it listen on {0, 0, 0, 0} and set PCCL_SECRET_FILE, and PCCL_TOKEN for peers. */
#include <ccoip.h>
#include <pccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static pcclMasterInstance_t* master;

/* The one call that a signal handler may make. */
static void stop(int number) {
    (void)number;
    pcclInterruptMaster(master);
}

static void check(pcclResult_t result, const char* call) {
    if (result == pcclSuccess) return;
    fprintf(stderr, "%s: result %d: %s\n", call, result, pcclGetLastErrorText());
    exit(1);
}

int main(int count, char** arguments) {
    const int port = count > 1 ? atoi(arguments[1]) : CCOIP_PROTOCOL_PORT_MASTER;
    const ccoip_socket_address_t listen = {{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, (uint16_t)port};

    check(pcclInit(), "pcclInit");
    check(pcclCreateMaster(listen, &master), "pcclCreateMaster");
    signal(SIGINT, stop);
    signal(SIGTERM, stop);
    check(pcclRunMaster(master), "pcclRunMaster");
    printf("the master listens on port %d; Ctrl-C ends it\n", port);
    fflush(stdout);

    check(pcclMasterAwaitTermination(master), "pcclMasterAwaitTermination");
    check(pcclDestroyMaster(master), "pcclDestroyMaster");
    puts("the master has ended");
    return 0;
}
