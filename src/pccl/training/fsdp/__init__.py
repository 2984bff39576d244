"""Models that are sharded over the ranks of a node (FSDP2): what lies on this rank, and what the node's ranks agree on.

Owns the words of torch's own parallelism, in which a node has ranks. To a run a node is a party, and each of its ranks
a peer, in the group of its place in the mesh. Imported when a model with DTensors is passed.
"""
