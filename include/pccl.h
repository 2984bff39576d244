/* Fault-tolerant collective communication, for C and C++: the names, values and layouts of PCCL's C API, so that
 * programs written for that compile, link and run. What differs, and why: docs/c-api.md.
 *
 * Every call returns a result code. After one that is not pcclSuccess, pcclGetLastErrorText() has the sentence.
 *
 * Any thread may make any call, and threads may make calls beside each other, within the rules of the calls themselves:
 * collectives in flight have different tags and share no memory; pcclUpdateTopology and pcclSynchronizeSharedState want
 * none in flight. Memory that is passed is the library's until the call returns, that of pcclAllReduceAsync until
 * pcclAwaitAsyncReduce has; afterwards it is not touched. Only pcclInterruptMaster may be called by a signal handler.
 */
#ifndef PCCL_PCCL_H
#define PCCL_PCCL_H

#include <ccoip_inet.h>
#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#if defined(__GNUC__)
#define PCCL_EXPORT __attribute__((visibility("default")))
#else
#define PCCL_EXPORT
#endif

/* Marks pointers that may be NULL. */
#define PCCL_NULLABLE

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pcclResult_t {
    pcclSuccess = 0,
    pcclNotInitialized = 1,         /* pcclInit comes first */
    pcclInternalError = 2,          /* no Python was found, or something that must not happen */
    pcclInvalidArgument = 3,        /* fix this argument; no byte has moved */
    pcclInvalidUsage = 4,           /* not this call, not now: not connected, closed, a forked child, a mismatch */
    pcclTooFewPeers = 5,            /* alone in the group; the tensor is as it was */
    pcclMasterConnectionFailed = 6, /* no master, refused, kicked, or the master is lost: make a new communicator */
    pcclRankConnectionFailed = 7,   /* not returned: C calls have no timeout */
    pcclRankConnectionLost = 8,     /* a collective was aborted: inputs are as they were, make the same call again */
    pcclNoSharedStateAvailable = 9, /* not returned */
    pcclPendingAsyncOps = 10,       /* await what is in flight first */
    pcclUpdateTopologyFailed = 11,  /* not returned */
    pcclTopologyOptimizationFailed = 12 /* not returned */
} pcclResult_t;

typedef enum pcclDataType_t {
    pcclUint8 = 0,
    pcclInt8 = 1,
    pcclInt16 = 2,
    pcclUint16 = 3,
    pcclUint32 = 4,
    pcclInt32 = 5,
    pcclUint64 = 6,
    pcclInt64 = 7,
    pcclFloat16 = 8,
    pcclBFloat16 = 9,
    pcclFloat = 10,
    pcclDouble = 11
} pcclDataType_t;

typedef enum pcclDeviceType_t {
    pcclDeviceCpu = 0,
    pcclDeviceCuda = 1 /* refused: an address says nothing of its device; copy to the host first */
} pcclDeviceType_t;

typedef enum pcclRedOp_t { pcclSum = 0, pcclAvg = 1, pcclProd = 2, pcclMax = 3, pcclMin = 4 } pcclRedOp_t;

/* Sizes of the run, as of the latest epoch. They change when peers are lost, too, not in calls alone. */
typedef enum pcclAttribute_t {
    PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE = 1,            /* all accepted peers */
    PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE = 2,        /* those of this peer's group */
    PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS = 3,     /* groups with a peer in them */
    PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE = 4 /* peers in the largest */
} pcclAttribute_t;

/* Whose state may win, and who takes it over. If one peer passes ENFORCE_POPULAR, all must. */
typedef enum pcclSharedStateSyncStrategy_t {
    PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR = 0, /* the highest revision, then the most popular content */
    PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY = 1,    /* this peer's never wins */
    PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY = 2        /* this peer's must win, and is never written to */
} pcclSharedStateSyncStrategy_t;

/* Without effect here as in PCCL. */
typedef enum pcclDistributionHint_t {
    pcclDistributionNone = 0,
    pcclDistributionNormal = 1,
    pcclDistributionUniform = 2
} pcclDistributionHint_t;

typedef enum pcclQuantizationAlgorithm_t {
    pcclQuantNone = 0,
    pcclQuantMinMax = 1,        /* to pcclUint8 or pcclUint16 */
    pcclQuantZeroPointScale = 2 /* to these, pcclInt8 or pcclInt16 */
} pcclQuantizationAlgorithm_t;

typedef struct pcclComm_t pcclComm_t;
typedef struct pcclRankInfo_t pcclRankInfo_t;
typedef struct pcclMasterInstanceState_t pcclMasterInstance_t;

typedef struct pcclCommCreateParams_t {
    ccoip_socket_address_t master_address;
    uint32_t peer_group;               /* peers of the same group reduce and sync together */
    uint32_t p2p_connection_pool_size; /* lanes to each neighbour; 0 leaves it to the group */
} pcclCommCreateParams_t;

typedef struct pcclReduceInfo_t {
    uint32_t local_world_size; /* peers whose contributions are in the result */
    uint64_t tx_bytes;         /* sent by this peer, headers and aborted attempts included */
    uint64_t rx_bytes;
} pcclReduceInfo_t;

typedef struct pcclReduceOperandDescriptor_t {
    pcclDataType_t datatype;
    pcclDistributionHint_t distribution_hint;
} pcclReduceOperandDescriptor_t;

typedef struct pcclQuantizationOptions_t {
    pcclDataType_t quantized_datatype;
    pcclQuantizationAlgorithm_t algorithm;
} pcclQuantizationOptions_t;

typedef struct pcclReduceDescriptor_t {
    size_t count; /* elements */
    pcclRedOp_t op;
    uint64_t tag; /* the name of this collective, below 2^63; the same on all peers */
    pcclReduceOperandDescriptor_t src_descriptor;
    pcclQuantizationOptions_t quantization_options;
} pcclReduceDescriptor_t;

typedef struct pcclReduceSingleDescriptor_t {
    void* sendbuf;
    void* recvbuf; /* may be the same */
    pcclReduceDescriptor_t descriptor;
} pcclReduceOpDescriptor_t;

typedef struct pcclAsyncReduceOp_t {
    pcclComm_t* comm;
    uint64_t tag;
} pcclAsyncReduceOp_t;

typedef struct pcclRankUuid_t {
    uint8_t data[16];
} pcclRankUuid_t;

typedef struct pcclTensorInfo_t {
    const char* name; /* UTF-8; the same tensors by the same names on all peers, in the same order */
    void* data;
    size_t count;
    pcclDataType_t datatype;
    pcclDeviceType_t device_type;
    bool allow_content_inequality; /* not compared; a newcomer gets that of another peer */
} pcclTensorInfo_t;

typedef struct pcclSharedState_t {
    uint64_t revision; /* yours to raise by one for each step; a sync sets it to the elected one */
    size_t count;
    pcclTensorInfo_t* infos;
} pcclSharedState_t;

typedef struct pcclSharedStateSyncInfo_t {
    uint64_t tx_bytes;
    uint64_t rx_bytes; /* 0 for a peer that was in step */
} pcclSharedStateSyncInfo_t;

typedef struct pcclBuildInfo_t {
    bool has_cuda_support;
} pcclBuildInfo_t;

/* Load what is needed; the first call of a program does so in any case. May be called again. */
PCCL_EXPORT pcclResult_t pcclInit(void);

PCCL_EXPORT pcclResult_t pcclGetBuildInfo(pcclBuildInfo_t* info);

/* Why the last call of this thread that failed did: a sentence in UTF-8, empty if none has failed. It stays until the
 * next one fails. pcclInterruptMaster leaves it as it is. Not in PCCL. */
PCCL_EXPORT const char* pcclGetLastErrorText(void);

/* ── a peer ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Nothing is dialled yet. Further settings come from the environment (PCCL_TOKEN, PCCL_NAME, …). */
PCCL_EXPORT pcclResult_t pcclCreateCommunicator(const pcclCommCreateParams_t* params, pcclComm_t** comm_out);

/* Leave the run and let go of everything. Collectives in flight end; their memory is free when this returns. */
PCCL_EXPORT pcclResult_t pcclDestroyCommunicator(pcclComm_t* communicator);

/* Join the run, in one attempt. Returns when this peer is accepted: at once if it is the first, else when the others
 * call pcclUpdateTopology. After a failure it may be called again. */
PCCL_EXPORT pcclResult_t pcclConnect(pcclComm_t* communicator);

/* Never waits. */
PCCL_EXPORT pcclResult_t pcclGetAttribute(const pcclComm_t* communicator, pcclAttribute_t attribute,
                                          int* p_attribute_out);

/* Admit the candidates that wait. All accepted peers call it. */
PCCL_EXPORT pcclResult_t pcclUpdateTopology(pcclComm_t* communicator);

/* Do candidates wait? All accepted peers call it, and all get the same answer; collectives may be in flight. */
PCCL_EXPORT pcclResult_t pcclArePeersPending(const pcclComm_t* communicator, bool* pending_out);

/* The order of the ring is the library's own concern here: this checks that the peer is in a run of two or more, and
 * leaves the ring as it is. */
PCCL_EXPORT pcclResult_t pcclOptimizeTopology(const pcclComm_t* communicator);

/* ── collectives ─────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Reduce with all peers of the group; the same bits everywhere, or the same failure. */
PCCL_EXPORT pcclResult_t pcclAllReduce(const void* sendbuff, void* recvbuff, const pcclReduceDescriptor_t* descriptor,
                                       const pcclComm_t* communicator, pcclReduceInfo_t* PCCL_NULLABLE reduce_info_out);

/* The same without waiting; each one that succeeds must be awaited, once. */
PCCL_EXPORT pcclResult_t pcclAllReduceAsync(const void* sendbuff, void* recvbuff,
                                            const pcclReduceDescriptor_t* descriptor, const pcclComm_t* communicator,
                                            pcclAsyncReduceOp_t* reduce_handle_out);

PCCL_EXPORT pcclResult_t pcclAwaitAsyncReduce(const pcclAsyncReduceOp_t* reduce_handle,
                                              pcclReduceInfo_t* PCCL_NULLABLE reduce_info_out);

/* Many at once, at most max_in_flight at a time, and again those that were aborted, until all are done or no other peer
 * is left. */
PCCL_EXPORT pcclResult_t pcclAllReduceMultipleWithRetry(const pcclReduceOpDescriptor_t* descriptors, size_t count,
                                                        const pcclComm_t* communicator,
                                                        pcclReduceInfo_t* PCCL_NULLABLE reduce_info_out,
                                                        int max_in_flight);

/* ── shared state ────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Let all peers of the group hold the same state. All of them call it. */
PCCL_EXPORT pcclResult_t pcclSynchronizeSharedState(const pcclComm_t* communicator, pcclSharedState_t* shared_state,
                                                    pcclSharedStateSyncStrategy_t strategy,
                                                    pcclSharedStateSyncInfo_t* PCCL_NULLABLE sync_info_out);

/* ── a master ────────────────────────────────────────────────────────────────────────────────────────────────────── */

PCCL_EXPORT pcclResult_t pcclCreateMaster(ccoip_socket_address_t listen_address,
                                          pcclMasterInstance_t** p_master_handle_out);

/* Listen and serve in the background. */
PCCL_EXPORT pcclResult_t pcclRunMaster(pcclMasterInstance_t* master_instance);

/* Ask it to stop. Returns at once, and may be called by a signal handler. */
PCCL_EXPORT pcclResult_t pcclInterruptMaster(pcclMasterInstance_t* master_instance);

/* Wait until it was interrupted and has stopped; its port is free then. */
PCCL_EXPORT pcclResult_t pcclMasterAwaitTermination(pcclMasterInstance_t* master_instance);

/* One that still serves is stopped. */
PCCL_EXPORT pcclResult_t pcclDestroyMaster(pcclMasterInstance_t* master_instance);

#ifdef __cplusplus
}
#endif

#endif
