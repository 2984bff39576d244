"""`pccl.cuda.is_available()`, which scripts written for PCCL ask. Must not know anything else."""


def is_available() -> bool:
    """False: the library has no code for CUDA. It reduces CUDA tensors all the same, through a copy on the CPU."""
    return False
