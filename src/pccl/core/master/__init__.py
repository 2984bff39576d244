"""The master's decisions, one module per subject."""
