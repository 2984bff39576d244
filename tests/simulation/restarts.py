"""What a run that restarts from checkpoints makes of hours in which machines are taken away: arithmetic, no simulation.

Owns the model, which is kind to it: checkpoints cost nothing, losses are noticed at once, restarts succeed.
"""

from dataclasses import dataclass, field


@dataclass
class Restarts:
    """One such run, and how far it was at each turn of its fate."""

    restarts: int = 0
    steps: int = 0
    """Those that count in the end."""
    curve: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    """(seconds, steps), with a fall for each loss."""

    @classmethod
    def play(cls, losses: list[float], seconds: float, step_s: float, costs: tuple[float, float]) -> "Restarts":
        """`costs` are the seconds between two checkpoints, and those from a loss to the next step. Whoever is struck
        while it restarts restarts again."""
        every_s, restart_s = costs
        run = cls()
        saved = 0
        begun_at = 0.0
        for lost_at in [*losses, seconds]:
            up_s = max(0.0, lost_at - begun_at)
            reached = saved + int(up_s // step_s)
            run.curve += [(min(begun_at, lost_at), saved), (lost_at, reached)]
            run.steps = reached
            if lost_at == seconds:
                break
            # The last checkpoint holds the steps that had ended when it was written.
            saved += int(up_s // every_s * every_s // step_s)
            run.restarts += 1
            begun_at = lost_at + restart_s
            run.curve += [(lost_at, saved)]
        return run
