/* Many threads of a program that reduce at once, each under a tag of its own, and whose errors do not mix. Arguments:
 * the master's port, how many threads, how many rounds. Prints "ok". */
#include <pccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 20000, THREADS_MAX = 32 };

static pcclComm_t* comm;
static int rounds;

static void check(int good, const char* what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, pcclGetLastErrorText());
    exit(1);
}

static void* reduce(void* given) {
    const int number = *(int*)given;
    float* values = malloc(COUNT * sizeof *values);
    pcclReduceDescriptor_t sum;
    memset(&sum, 0, sizeof sum);
    sum.count = COUNT;
    sum.tag = (uint64_t)number;
    sum.src_descriptor.datatype = pcclFloat;
    if (number % 2) check(pcclAllReduce(NULL, values, &sum, comm, NULL) == pcclInvalidArgument, "NULL");
    for (int turn = 0; turn < rounds; turn++) {
        for (int at = 0; at < COUNT; at++) values[at] = (float)(number + turn);
        check(pcclAllReduce(values, values, &sum, comm, NULL) == pcclSuccess, "pcclAllReduce");
        for (int at = 0; at < COUNT; at++) check(values[at] == 2.0f * (float)(number + turn), "the sum");
    }
    check((strlen(pcclGetLastErrorText()) > 0) == (number % 2), "the text of another thread");
    free(values);
    return NULL;
}

int main(int count, char** arguments) {
    pcclCommCreateParams_t params;
    pthread_t threads[THREADS_MAX];
    int numbers[THREADS_MAX], size = 0;
    const int wanted = count == 4 ? atoi(arguments[2]) : 0;
    memset(&params, 0, sizeof params);
    params.master_address.inet.ipv4.data[0] = 127;
    params.master_address.inet.ipv4.data[3] = 1;
    params.master_address.port = (uint16_t)atoi(arguments[1]);
    rounds = atoi(arguments[3]);
    check(pcclInit() == pcclSuccess, "pcclInit");
    check(pcclCreateCommunicator(&params, &comm) == pcclSuccess, "pcclCreateCommunicator");
    check(pcclConnect(comm) == pcclSuccess, "pcclConnect");
    while (pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &size) == pcclSuccess && size < 2)
        check(pcclUpdateTopology(comm) == pcclSuccess, "pcclUpdateTopology");
    for (int number = 0; number < wanted; number++) {
        numbers[number] = number;
        check(pthread_create(&threads[number], NULL, reduce, &numbers[number]) == 0, "pthread_create");
    }
    for (int number = 0; number < wanted; number++) pthread_join(threads[number], NULL);
    check(pcclDestroyCommunicator(comm) == pcclSuccess, "pcclDestroyCommunicator");
    puts("ok");
    return 0;
}
