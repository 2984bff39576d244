"""A peer's decisions, one module per subject."""
