/* The peer in C of bench/c_api.py: the port as its argument; then lines "COUNT REPETITIONS", each answered with the
 * seconds of every repetition. The first peer of a run admits the second. */
#define _POSIX_C_SOURCE 200809L
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(pcclResult_t result) {
    if (result == pcclSuccess) return;
    fprintf(stderr, "result %d: %s\n", result, pcclGetLastErrorText());
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

int main(int count, char** arguments) {
    pcclCommCreateParams_t params;
    pcclComm_t* comm;
    size_t length;
    int size = 0, repetitions;
    memset(&params, 0, sizeof params);
    params.master_address.inet.ipv4.data[0] = 127;
    params.master_address.inet.ipv4.data[3] = 1;
    params.master_address.port = (uint16_t)(count > 1 ? atoi(arguments[1]) : 0);
    const double began = now();
    check(pcclInit());
    const double first = now() - began;
    check(pcclCreateCommunicator(&params, &comm));
    check(pcclConnect(comm));
    while (check(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &size)), size < 2)
        check(pcclUpdateTopology(comm));
    printf("%.4f\n", first);
    fflush(stdout);
    while (scanf("%zu %d", &length, &repetitions) == 2) {
        float* tensor = calloc(length, sizeof *tensor);
        const pcclReduceDescriptor_t sum = {
            length, pcclSum, 0, {pcclFloat, pcclDistributionNone}, {pcclFloat, pcclQuantNone}};
        for (int turn = 0; turn < repetitions; turn++) {
            const double start = now();
            check(pcclAllReduce(tensor, tensor, &sum, comm, NULL));
            printf("%.7f ", now() - start);
        }
        printf("\n");
        fflush(stdout);
        free(tensor);
    }
    return 0;
}
