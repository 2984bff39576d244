"""Pure functions and small values that both cores decide with; they keep no state of a run."""
