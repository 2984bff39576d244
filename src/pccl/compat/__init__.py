"""What exists only so that scripts written for PCCL run unchanged."""
