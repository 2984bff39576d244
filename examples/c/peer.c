/* A peer that averages a vector with all others, step by step. Start one, then more; kill one: the rest go on.
 *
 *   cc -std=c99 peer.c $(pccl config --cflags --libs) -o peer && ./peer [PORT [STEPS]] */
#define _POSIX_C_SOURCE 200809L
#include <ccoip.h>
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COUNT = 1000000 };

static void check(pcclResult_t result, const char* call) {
    if (result == pcclSuccess) return;
    fprintf(stderr, "%s: result %d: %s\n", call, result, pcclGetLastErrorText());
    exit(1);
}

int main(int count, char** arguments) {
    const int port = count > 1 ? atoi(arguments[1]) : CCOIP_PROTOCOL_PORT_MASTER;
    const uint64_t steps = count > 2 ? strtoull(arguments[2], NULL, 10) : 100;
    const pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, (uint16_t)port}, 0, 0};
    const pcclReduceDescriptor_t average = {
        COUNT, pcclAvg, 0, {pcclFloat, pcclDistributionNone}, {pcclFloat, pcclQuantNone}};
    float *weights = calloc(COUNT, sizeof *weights), *gradient = calloc(COUNT, sizeof *gradient);
    pcclTensorInfo_t tensor = {"weights", weights, COUNT, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state = {0, 1, &tensor};
    pcclComm_t* comm;

    check(pcclInit(), "pcclInit");
    check(pcclCreateCommunicator(&params, &comm), "pcclCreateCommunicator");
    check(pcclConnect(comm), "pcclConnect"); /* returns when the others have voted us in */
    for (bool newcomer = true; state.revision < steps; newcomer = false) {
        bool pending = false;
        if (!newcomer) check(pcclArePeersPending(comm, &pending), "pcclArePeersPending");
        if (pending) check(pcclUpdateTopology(comm), "pcclUpdateTopology");

        /* A newcomer gets weights and revision; for a peer in step it is a hash and a vote. */
        check(pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL), "sync");

        for (int at = 0; at < COUNT; at++) gradient[at] = 1.0f;
        pcclReduceInfo_t info = {1, 0, 0};
        pcclResult_t result;
        do result = pcclAllReduce(gradient, gradient, &average, comm, &info);
        while (result == pcclRankConnectionLost); /* a peer died: the gradient is as it was, and the ring is closed */
        if (result != pcclTooFewPeers) check(result, "pcclAllReduce"); /* alone: our own gradient will do */

        for (int at = 0; at < COUNT; at++) weights[at] += gradient[at];
        printf("step %d: %d peers, weight %g\n", (int)++state.revision, (int)info.local_world_size, weights[COUNT - 1]);
        fflush(stdout);
        nanosleep(&(const struct timespec){0, 20000000}, NULL); /* here a real one would compute */
    }
    check(pcclDestroyCommunicator(comm), "pcclDestroyCommunicator");
    return 0;
}
