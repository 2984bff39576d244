"""The public calls. `pccl` exports them; nothing below imports this package."""
