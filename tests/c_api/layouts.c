/* Sizes and offsets of all structs, as a compiler has them. */
#include <pccl.h>
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void) {
    SIZE(ccoip_socket_address_t);
    AT(ccoip_socket_address_t, inet.protocol);
    AT(ccoip_socket_address_t, inet.ipv4);
    AT(ccoip_socket_address_t, inet.ipv6);
    AT(ccoip_socket_address_t, port);
    SIZE(pcclCommCreateParams_t);
    AT(pcclCommCreateParams_t, master_address);
    AT(pcclCommCreateParams_t, peer_group);
    AT(pcclCommCreateParams_t, p2p_connection_pool_size);
    SIZE(pcclReduceInfo_t);
    AT(pcclReduceInfo_t, local_world_size);
    AT(pcclReduceInfo_t, tx_bytes);
    AT(pcclReduceInfo_t, rx_bytes);
    SIZE(pcclReduceDescriptor_t);
    AT(pcclReduceDescriptor_t, count);
    AT(pcclReduceDescriptor_t, op);
    AT(pcclReduceDescriptor_t, tag);
    AT(pcclReduceDescriptor_t, src_descriptor.datatype);
    AT(pcclReduceDescriptor_t, src_descriptor.distribution_hint);
    AT(pcclReduceDescriptor_t, quantization_options.quantized_datatype);
    AT(pcclReduceDescriptor_t, quantization_options.algorithm);
    SIZE(pcclReduceOpDescriptor_t);
    AT(pcclReduceOpDescriptor_t, sendbuf);
    AT(pcclReduceOpDescriptor_t, recvbuf);
    AT(pcclReduceOpDescriptor_t, descriptor);
    SIZE(pcclAsyncReduceOp_t);
    AT(pcclAsyncReduceOp_t, comm);
    AT(pcclAsyncReduceOp_t, tag);
    SIZE(pcclTensorInfo_t);
    AT(pcclTensorInfo_t, name);
    AT(pcclTensorInfo_t, data);
    AT(pcclTensorInfo_t, count);
    AT(pcclTensorInfo_t, datatype);
    AT(pcclTensorInfo_t, device_type);
    AT(pcclTensorInfo_t, allow_content_inequality);
    SIZE(pcclSharedState_t);
    AT(pcclSharedState_t, revision);
    AT(pcclSharedState_t, count);
    AT(pcclSharedState_t, infos);
    SIZE(pcclSharedStateSyncInfo_t);
    AT(pcclSharedStateSyncInfo_t, tx_bytes);
    AT(pcclSharedStateSyncInfo_t, rx_bytes);
    SIZE(pcclBuildInfo_t);
    AT(pcclBuildInfo_t, has_cuda_support);
    return 0;
}
