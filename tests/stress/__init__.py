"""The stress tool, `python -m tests.stress`: see docs/stress.md."""
