"""`pccl stress`: real processes that are killed and stopped by seed, while every sum is checked to the last bit.

Owns its arguments and its exit status. The parent process alone kills; peers that shall die at a point of a collective
are told so and do it themselves.
"""

import argparse
import random
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path

BOUND_S = 15.0
"""Default bound on a wait that is due to a death: connections close at once, and the rest takes a few round trips.
Measured below a second; the margin is for machines with more processes than cores."""

SILENCE_S = 4.0
"""Default limit of the master on a stopped peer's silence: seconds instead of a minute, so that many stops fit into a
run, and long enough for a peer that is merely starved."""


INTERRUPTED = 130
"""Exit status of a run that somebody ended: what it had to show, such as that all find together again, it has not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument("--peers", type=int, default=4, metavar="N", help="how many shall be in the run (%(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="how long (%(default)s)")
    parser.add_argument("--kills", type=int, metavar="N", help="end after this many kills instead")
    parser.add_argument(
        "--kill-every", type=_range, default=(0.2, 1.0), metavar="S-S", help="seconds between two faults (0.2-1)"
    )
    parser.add_argument("--stop", action="store_true", help="also stop peers (SIGSTOP), for a while or for too long")
    parser.add_argument("--cut", action="store_true", help="also cut connections: resets, stalls, black holes")
    parser.add_argument("--master", action="store_true", help="also kill the master, and start another in its place")
    parser.add_argument("--seed", type=int, help="of faults and calls; drawn if not given")
    parser.add_argument(
        "--silence", type=float, default=SILENCE_S, metavar="S", help="the master's limit (%(default)s)"
    )
    parser.add_argument("--bound", type=float, default=BOUND_S, metavar="S", help="on any wait (%(default)s)")
    parser.add_argument(
        "--logs", type=Path, metavar="DIR", help="where logs go; by default kept only if anything broke"
    )


def stress(chosen: argparse.Namespace) -> int:
    """Run it; the exit status."""
    try:
        import numpy  # noqa: F401 - asked for here, where it can be said in words
    except ImportError:
        print("pccl stress: it computes with numpy, which is not there: pip install numpy", file=sys.stderr)
        return 2
    from pccl.cli.stress.fleet import Fleet
    from pccl.cli.stress.options import Options
    from pccl.cli.stress.run import Run
    from pccl.cli.stress.show import Show

    if chosen.peers < 3:
        print("pccl stress: --peers: at least 3, so that two are left when one dies", file=sys.stderr)
        return 2
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
    )
    show = Show(sys.stdout)
    # Whoever ends us by SIGTERM, such as `timeout`, wants our processes to end too, and reads the report all the same.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Fleet(logs, options) as fleet:
        run = Run(options, fleet, show.tick)
        run.run()
    show.report(run, _replay(chosen, seed))
    if run.referee.broken:
        return 1
    if run.interrupted:
        return INTERRUPTED
    if chosen.logs is None:
        shutil.rmtree(logs)
    return 0


def _range(text: str) -> tuple[float, float]:
    least, _, most = text.partition("-")
    try:
        pair = float(least), float(most or least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, nor two with a - between") from None
    if not 0 <= pair[0] <= pair[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: the first must not be above the second")
    return pair


def _replay(chosen: argparse.Namespace, seed: int) -> str:
    """The command that draws the same faults. Moments still depend on the machine, so it may take a few runs."""
    words = ["pccl", "stress", "--peers", f"{chosen.peers}", "--seed", f"{seed}"]
    words += ["--kills", f"{chosen.kills}"] if chosen.kills is not None else ["--minutes", f"{chosen.minutes:g}"]
    words += ["--kill-every", "{:g}-{:g}".format(*chosen.kill_every), "--silence", f"{chosen.silence:g}"]
    words += ["--bound", f"{chosen.bound:g}", *(["--stop"] if chosen.stop else [])]
    words += [f"--{name}" for name in ("cut", "master") if getattr(chosen, name)]
    return shlex.join(words)
