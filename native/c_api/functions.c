/* The public functions. Owns how arguments are packed: each as 64 bits, pointers as they are. Whether a pointer may be
 * NULL, and what a number means, is decided in pccl.c_api. */
#include <errno.h>
#include <unistd.h>

#include "guest.h"

static uint64_t word(const void* pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

#define RUN(call, ...)                                              \
    do {                                                            \
        const uint64_t given[] = {__VA_ARGS__};                     \
        return capi_run(call, given, sizeof given / sizeof *given); \
    } while (0)

pcclResult_t pcclInit(void) {
    RUN(CALL_INIT, 0);
}

pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t* info) {
    RUN(CALL_GET_BUILD_INFO, word(info));
}

const char* pcclGetLastErrorText(void) {
    return capi_last_text();
}

pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t* params, pcclComm_t** comm_out) {
    RUN(CALL_CREATE_COMMUNICATOR, word(params), word(comm_out));
}

pcclResult_t pcclDestroyCommunicator(pcclComm_t* communicator) {
    RUN(CALL_DESTROY_COMMUNICATOR, word(communicator));
}

pcclResult_t pcclConnect(pcclComm_t* communicator) {
    RUN(CALL_CONNECT, word(communicator));
}

pcclResult_t pcclGetAttribute(const pcclComm_t* communicator, pcclAttribute_t attribute, int* p_attribute_out) {
    RUN(CALL_GET_ATTRIBUTE, word(communicator), (uint64_t)attribute, word(p_attribute_out));
}

pcclResult_t pcclUpdateTopology(pcclComm_t* communicator) {
    RUN(CALL_UPDATE_TOPOLOGY, word(communicator));
}

pcclResult_t pcclArePeersPending(const pcclComm_t* communicator, bool* pending_out) {
    RUN(CALL_ARE_PEERS_PENDING, word(communicator), word(pending_out));
}

pcclResult_t pcclOptimizeTopology(const pcclComm_t* communicator) {
    RUN(CALL_OPTIMIZE_TOPOLOGY, word(communicator));
}

pcclResult_t pcclAllReduce(const void* sendbuff, void* recvbuff, const pcclReduceDescriptor_t* descriptor,
                           const pcclComm_t* communicator, pcclReduceInfo_t* reduce_info_out) {
    RUN(CALL_ALL_REDUCE, word(sendbuff), word(recvbuff), word(descriptor), word(communicator), word(reduce_info_out));
}

pcclResult_t pcclAllReduceAsync(const void* sendbuff, void* recvbuff, const pcclReduceDescriptor_t* descriptor,
                                const pcclComm_t* communicator, pcclAsyncReduceOp_t* reduce_handle_out) {
    RUN(CALL_ALL_REDUCE_ASYNC, word(sendbuff), word(recvbuff), word(descriptor), word(communicator),
        word(reduce_handle_out));
}

pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t* reduce_handle, pcclReduceInfo_t* reduce_info_out) {
    RUN(CALL_AWAIT_ASYNC_REDUCE, word(reduce_handle), word(reduce_info_out));
}

pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t* descriptors, size_t count,
                                            const pcclComm_t* communicator, pcclReduceInfo_t* reduce_info_out,
                                            int max_in_flight) {
    RUN(CALL_ALL_REDUCE_MULTIPLE_WITH_RETRY, word(descriptors), (uint64_t)count, word(communicator),
        word(reduce_info_out), (uint64_t)(int64_t)max_in_flight);
}

pcclResult_t pcclSynchronizeSharedState(const pcclComm_t* communicator, pcclSharedState_t* shared_state,
                                        pcclSharedStateSyncStrategy_t strategy,
                                        pcclSharedStateSyncInfo_t* sync_info_out) {
    RUN(CALL_SYNCHRONIZE_SHARED_STATE, word(communicator), word(shared_state), (uint64_t)strategy, word(sync_info_out));
}

pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address, pcclMasterInstance_t** p_master_handle_out) {
    RUN(CALL_CREATE_MASTER, word(&listen_address), word(p_master_handle_out));
}

pcclResult_t pcclRunMaster(pcclMasterInstance_t* master_instance) {
    RUN(CALL_RUN_MASTER, word(master_instance));
}

/* By a signal handler, perhaps: no lock, no memory, one write. A thread in pccl.c_api reads it. */
pcclResult_t pcclInterruptMaster(pcclMasterInstance_t* master_instance) {
    const uint64_t handle = word(master_instance);
    const int before = errno, interrupts = capi_interrupts();
    if (handle == 0) return pcclInvalidArgument;
    if (interrupts < 0 || capi_forked()) return pcclInvalidUsage;
    const bool written = write(interrupts, &handle, sizeof handle) == (ssize_t)sizeof handle;
    errno = before;
    return written ? pcclSuccess : pcclInternalError;
}

pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t* master_instance) {
    RUN(CALL_MASTER_AWAIT_TERMINATION, word(master_instance));
}

pcclResult_t pcclDestroyMaster(pcclMasterInstance_t* master_instance) {
    RUN(CALL_DESTROY_MASTER, word(master_instance));
}
