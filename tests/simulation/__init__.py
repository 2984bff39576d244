"""Master and peers in one thread of virtual time: seeded faults, checkers, scenarios and mutants. See `__main__.py`."""
