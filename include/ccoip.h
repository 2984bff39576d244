/* PCCL's port numbers. Only the first means something here: a master listens on it unless told otherwise. A peer has
 * one port of its own, which the kernel chooses or PCCL_LISTEN names; the other three are here for programs that use
 * them. */
#ifndef PCCL_CCOIP_H
#define PCCL_CCOIP_H

#define CCOIP_PROTOCOL_PORT_MASTER 48148
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK 48151

#endif
