"""What people and programs see of a run: each view reads a `Status`, and decides nothing."""
