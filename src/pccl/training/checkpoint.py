"""Checkpoints of a run: whole files, written beside the training, and the newest found again.

Owns the files. Each is plain tensors and numbers, which `torch.load(weights_only=True)` reads. Must not know what is in
them.
"""

import contextlib
import logging
import math
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import torch

from pccl import UsageError

log = logging.getLogger("pccl.training")

NAME = "round-{:09d}.pt"
PATTERN = "round-" + "[0-9]" * 9 + ".pt"
BESIDE = PATTERN + ".*"
"""What is being written."""

ASIDE = "earlier-%Y%m%d-%H%M%S"
"""Where those of an earlier run are put."""

KEEP = 3
"""Files that stay: the newest may be of a moment that is regretted, and the one before it too."""

LEFT_S = 3600.0
"""What was begun, and not written to for so long, is of a process that was killed: no disk stands still for so
long, and ranks that write together give each other up after half an hour."""


class Saver:
    """Writes checkpoints into a folder, one at a time, in a thread of its own."""

    _ends_with_process = False
    """A process that ends does not wait for what is being written."""

    def __init__(self, folder: str | os.PathLike[str], every: int, keep: int) -> None:
        self._folder, self.every, self._keep, self._made_at = Path(folder), every, keep, time.time()
        self._thread: threading.Thread | None = None
        self._failed: OSError | None = None
        """Why the last one could not be written."""

    def save(self, round: int, state: dict[str, Any]) -> None:
        """Write this; the state is ours. While the last one is being written it is left out."""
        if self.busy:
            log.warning("the checkpoint of round %d is left out: the last one is still being written", round)
            return
        self.begin(round, state)

    def _found(self) -> list[Path]:
        return found(self._folder)

    def put_aside(self, round: int) -> None:
        """Make room for a run that is at this round: of checkpoints of later ones, which were here before it, its own
        would be the oldest, and the first to go."""
        later = [path for path in self._found() if number_of(path) > round and written_at(path) < self._made_at]
        if not later:
            return
        aside = self._folder / time.strftime(ASIDE, time.localtime(self._made_at))
        log.warning(
            "%s holds checkpoints of later rounds (up to %d) than that of this run (%d), which was not resumed from "
            "them: they are put aside into %s. To go on from them end this run, move them back, and resume",
            *(self._folder, number_of(later[0]), round, aside),
        )
        aside.mkdir(exist_ok=True)
        for path in later:
            with contextlib.suppress(FileNotFoundError):  # Another peer of this machine did.
                path.rename(aside / path.name)

    @property
    def busy(self) -> bool:
        """The last one is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, round: int, state: dict[str, Any]) -> None:
        """Write this, with none under way."""
        self._thread = threading.Thread(
            target=self._write, args=(round, state), name="pccl-checkpoint", daemon=self._ends_with_process
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait until what was begun is written. Raises why the last of it was not."""
        if self._thread is not None:
            self._thread.join()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _write(self, round: int, state: dict[str, Any]) -> None:
        try:
            write(self._folder / NAME.format(round), state)
            for old in found(self._folder)[self._keep :]:
                with contextlib.suppress(FileNotFoundError):  # Another peer of this machine removed it.
                    old.unlink()
            forget_left(self._folder, BESIDE)
            self._failed = None  # What could not be written before is older than this.
        except OSError as error:
            log.error("the checkpoint of round %d could not be written to %s: %s", round, self._folder, error)
            self._failed = error


def write(path: Path, state: dict[str, Any]) -> None:
    """All of it or nothing, also when the machine stops in the middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    settle(path.parent)


def settle(folder: Path) -> None:
    """The names in it last, also when the machine stops."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def found(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest first."""
    return sorted(folder.glob(PATTERN), reverse=True)


def number_of(path: Path) -> int:
    """The round of a checkpoint."""
    return int(re.findall(r"\d+", path.name)[0])


def written_at(path: Path) -> float:
    """When it was written; infinity if it has been removed."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return math.inf


def forget_left(folder: Path, pattern: str) -> None:
    """Remove what processes that were killed have left half written: on machines that are taken away again and again it
    would fill the disk."""
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # Another peer of this machine removed it, or it has its name now.
            inside = list(path.iterdir()) if path.is_dir() else []
            if time.time() - max(each.stat().st_mtime for each in (path, *inside)) < LEFT_S:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def newest(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The newest checkpoint that can be read; None if there is none."""
    for path in found(Path(folder)):
        try:
            state = load(path)
        except Exception as error:  # Torch raises whatever its parts do, and all of it means: not this one.
            log.error("%s cannot be read (%s): the one before it is tried", path, error)
            continue
        if isinstance(state, dict):
            return state
    return None


def load(path: Path) -> Any:
    """What `write` has written: tensors and numbers, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def export(tensors: dict[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Whole tensors into a file of safetensors, which has its name only when all of it is written."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UsageError("export_safetensors needs the package safetensors: pip install 'pccl[safetensors]'") from error
    goal = Path(path)
    beside = goal.with_name(f"{goal.name}.{os.getpid()}")
    goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file({name: each.contiguous() for name, each in tensors.items()}, beside)
        beside.replace(goal)
    finally:
        beside.unlink(missing_ok=True)
