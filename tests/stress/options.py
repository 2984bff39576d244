"""What was asked of a stress drill, and the limits that follow from it.

Owns no behaviour: the other modules read it.
"""

from dataclasses import dataclass

from pccl.core.limits import MasterLimits
from tests.stress.secrecy import Secrecy

MASTER_AWAY_S = (0.1, 3.0)
"""From the death of a master to the start of the next one: a supervisor that is there at once, and a slow one."""

REUNION_S = MasterLimits().reunion_s
"""For which a master waits for peers that were in the run."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    peers: int
    seconds: float
    kills: int | None
    """End after this many, however long it takes."""
    kill_every: tuple[float, float]
    seed: int
    silence_s: float
    bound_s: float
    """On any wait of a peer that is due to deaths alone."""
    stop: bool = False
    cut: bool = False
    master: bool = False
    """Kill the master too."""
    secrecy: Secrecy | None = None
    """All of it behind a token, with sealed lanes."""

    @property
    def stall_s(self) -> float:
        """The peers' limit on a lane that passes no bytes: like that on silence short, so that many fit in."""
        return self.silence_s

    @property
    def wait_s(self) -> float:
        """No wait of anybody is longer. A peer that is stopped for long holds all others up until it is kicked, a lane
        that leads into a black hole until its bytes are missed, a master that is gone until the next one is there and
        has heard those who may come back."""
        wait_s = self.bound_s + (self.silence_s if self.stop else 0.0) + (self.stall_s if self.cut else 0.0)
        return wait_s + (self.restart_s if self.master else 0.0)

    @property
    def restart_s(self) -> float:
        """From the death of a master until the next one goes on. If that is killed as well, a wait may take as long
        once more, and so on."""
        return MASTER_AWAY_S[1] + REUNION_S + self.silence_s

    @property
    def master_settings(self) -> dict[str, str]:
        secret = self.secrecy.master_settings if self.secrecy else {}
        return {"PCCL_SILENCE_S": str(self.silence_s), **secret}

    @property
    def peer_settings(self) -> dict[str, str]:
        token = self.secrecy.peer_settings if self.secrecy else {}
        return {"PCCL_LOG_LEVEL": "INFO", **token, **({"PCCL_STALL_S": str(self.stall_s)} if self.cut else {})}
