"""`python -m tests.stress`: kill and stop real processes by seed, and check every sum to the last bit.

Owns its arguments and its exit status. The parent process alone kills; peers that shall die at a point of a collective
are sent that point and do it themselves.
"""

import argparse
import random
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.stress.drill import Drill
from tests.stress.fleet import Fleet
from tests.stress.options import Options
from tests.stress.secrecy import Secrecy
from tests.stress.show import Show

BOUND_S = 15.0
"""Default bound on a wait that is due to a death: connections close at once, and the rest takes a few round trips.
Measured below a second; the margin is for machines with more processes than cores."""

SILENCE_S = 4.0
"""Default limit of the master on a stopped peer's silence: seconds instead of a minute, so that many stops fit into a
drill, and long enough for a peer that is merely starved."""

INTERRUPTED = 130
"""Exit status of a drill that was interrupted: it did not get to show that all peers find together again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument("--peers", type=int, default=4, metavar="N", help="number of peers in the run (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--kills", type=int, metavar="N", help="end after this many kills instead")
    parser.add_argument(
        "--kill-every", type=seconds_range, default=(0.2, 1.0), metavar="S-S", help="seconds between two faults (0.2-1)"
    )
    parser.add_argument("--stop", action="store_true", help="also stop peers (SIGSTOP), for a while or for too long")
    parser.add_argument("--cut", action="store_true", help="also cut connections: resets, stalls, black holes")
    parser.add_argument("--master", action="store_true", help="also kill the master, and start another in its place")
    parser.add_argument("--secret", action="store_true", help="all of it behind a token, with sealed lanes")
    parser.add_argument("--seed", type=int, help="of faults and calls; drawn if not given")
    parser.add_argument(
        "--silence", type=float, default=SILENCE_S, metavar="S", help="the master's limit (%(default)s)"
    )
    parser.add_argument("--bound", type=float, default=BOUND_S, metavar="S", help="on any wait (%(default)s)")
    parser.add_argument(
        "--logs", type=Path, metavar="DIR", help="where logs go; by default kept only if anything broke"
    )


def main() -> int:
    """Conduct one drill; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description="Kill real peers; check every sum.")
    add_arguments(parser)
    chosen = parser.parse_args()
    if chosen.peers < 3:
        parser.error(f"--peers must be at least 3, so that two are left when one dies; got {chosen.peers}")
    seed = random.SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    logs = chosen.logs or Path(tempfile.mkdtemp(prefix="pccl-stress-"))
    logs.mkdir(parents=True, exist_ok=True)
    options = Options(
        peers=chosen.peers,
        seconds=60.0 * chosen.minutes,
        kills=chosen.kills,
        kill_every=chosen.kill_every,
        seed=seed,
        silence_s=chosen.silence,
        bound_s=chosen.bound,
        stop=chosen.stop,
        cut=chosen.cut,
        master=chosen.master,
        secrecy=Secrecy.make(logs) if chosen.secret else None,
    )
    show = Show(sys.stdout)
    # After SIGTERM, for example from `timeout`, our processes must end too, and the report is still printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Fleet(logs, options) as fleet:
        drill = Drill(options, fleet, show.tick)
        drill.conduct()
    show.report(drill, replay(chosen, seed))
    if drill.referee.broken:
        return 1
    if drill.interrupted:
        return INTERRUPTED
    if chosen.logs is None:
        shutil.rmtree(logs)
    return 0


def seconds_range(text: str) -> tuple[float, float]:
    """Read "0.2-1", or "1" for exactly that."""
    least, _, most = text.partition("-")
    try:
        pair = float(least), float(most or least)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds or a range such as 0.2-1, got {text!r}"
        ) from None
    if not 0 <= pair[0] <= pair[1]:
        raise argparse.ArgumentTypeError(f"must be a range from a smaller to a larger number, got {text!r}")
    return pair


def replay(chosen: argparse.Namespace, seed: int) -> str:
    """The command that draws the same faults. Moments still depend on the machine, so it may take a few runs."""
    words = ["python", "-m", "tests.stress", "--peers", f"{chosen.peers}", "--seed", f"{seed}"]
    words += ["--kills", f"{chosen.kills}"] if chosen.kills is not None else ["--minutes", f"{chosen.minutes:g}"]
    words += ["--kill-every", "{:g}-{:g}".format(*chosen.kill_every), "--silence", f"{chosen.silence:g}"]
    words += ["--bound", f"{chosen.bound:g}", *(["--stop"] if chosen.stop else [])]
    words += [f"--{name}" for name in ("cut", "master", "secret") if getattr(chosen, name)]
    return shlex.join(words)
