"""When a wait that has been explained is explained again. Must not know what is waited for, or by which side."""

AGAIN_S = (10.0, 60.0, 600.0)
"""A wait is told again when it is this old, and from then on whenever it is older by the last of these. A person who
looks at the log sees what the run waits for without scrolling far, and an hour of waiting is ten lines."""


def times_again(age_s: float) -> int:
    """How often a wait of this age has been told again."""
    return sum(age_s >= each for each in AGAIN_S) + max(0, int(age_s // AGAIN_S[-1]) - 1)
