"""Checkpoints of sharded models: folders that all ranks of a node write together, in the form of
`torch.distributed.checkpoint`, and the newest found again by as many ranks or by others.

Owns the folders. A folder has its name only when all of it is written. Must not know what is in it.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_together
from torch.distributed.checkpoint.state_dict_saver import save as save_together

from pccl.training.checkpoint import Saver, forget_left, load, log, settle, write
from pccl.training.fsdp.node import Node

NAME = "round-{:09d}"
PATTERN = "round-" + "[0-9]" * 9
BESIDE = PATTERN + ".*"
"""What is being written."""

TENSORS = "tensors"
"""Of a state: those that all ranks write together."""

OWN = "feedback"
"""What each rank has for itself, and only as many ranks can read."""


class ShardedSaver(Saver):
    """Writes checkpoints into a folder that all ranks of the node reach, in threads of their own."""

    _ends_with_process = True  # Writing may never end, where another rank hangs; `finish` waits for all that may.

    def __init__(self, folder: str | os.PathLike[str], every: int, keep: int, node: Node) -> None:
        super().__init__(folder, every, keep)
        self._node = node
        self._group = node.another_group()
        """Threads must not send between what the training sends."""

    def save(self, round: int, state: dict[str, Any]) -> None:
        """Write this; the state is ours. All ranks write it or leave it out."""
        if any(each != b"\0" for each in self._node.exchange(bytes([self.busy]))):
            log.warning("the checkpoint of round %d is left out: the last one is still being written", round)
            return
        self.begin(round, state)

    def finish(self) -> None:
        """Wait until what was begun is written, unless a rank hangs."""
        if self._node.lost and self.busy:
            log.error("the checkpoint that is being written is left: a rank of this node hangs")
            return
        super().finish()

    def _write(self, round: int, state: dict[str, Any]) -> None:
        final = self._folder / NAME.format(round)
        beside = final.with_name(f"{final.name}.{self._node.number:x}")
        try:
            self._write_all(beside, state)
            if self._node.place == 0:
                _put(beside, final)
                for old in found(self._folder)[self._keep :]:
                    shutil.rmtree(old, ignore_errors=True)  # Another node of this machine removes it, too.
                forget_left(self._folder, BESIDE)
            self._failed = None
        except (OSError, CheckpointException, RuntimeError) as error:
            log.error("the checkpoint of round %d could not be written to %s: %s", round, self._folder, error)
            self._failed = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            if self._node.place == 0:
                shutil.rmtree(beside, ignore_errors=True)

    def _write_all(self, beside: Path, state: dict[str, Any]) -> None:
        error: OSError | None = None
        try:
            self._write_own(beside, state)
        except OSError as cause:
            error = cause
        # Torch's own part tells all ranks of errors; these it does not know, and the others would wait in it.
        failed = torch.tensor([int(error is not None)])
        dist.all_reduce(failed, group=self._group)
        if failed:
            raise error or OSError("another rank of this node could not write its part, and has logged why")
        save_together(state[TENSORS], checkpoint_id=beside, process_group=self._group)
        dist.barrier(group=self._group)

    def _write_own(self, beside: Path, state: dict[str, Any]) -> None:
        place, size = self._node.place, self._node.size
        beside.mkdir(parents=True, exist_ok=True)
        write(beside / f"rank-{place}-of-{size}.pt", {OWN: state[OWN]})
        if place == 0:
            write(beside / "run.pt", {key: value for key, value in state.items() if key not in (OWN, TENSORS)})


def _put(beside: Path, final: Path) -> None:
    """Give a folder its name, unless another node of this machine was earlier. One of that name which is older than
    this was there before the run, and perhaps it cannot be read: it makes way."""
    before = beside.with_name(f"{beside.name}.before")
    begun = (beside / "run.pt").stat().st_mtime
    try:
        beside.rename(final)
    except OSError:
        if not final.exists():
            raise
        if final.stat().st_mtime < begun:
            with contextlib.suppress(OSError):  # Another node of this machine does the same.
                final.rename(before)
                beside.rename(final)
            shutil.rmtree(before, ignore_errors=True)
    settle(final.parent)


def found(folder: Path) -> list[Path]:
    """Checkpoints in a folder, the newest first."""
    return sorted(folder.glob(PATTERN), reverse=True)


def newest(folder: str | os.PathLike[str], node: Node, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The newest checkpoint that all ranks can read, in a state as `make` has them; None if there is none."""
    names = node.exchange("\n".join(each.name for each in found(Path(folder))).encode())[0].decode()
    for name in names.split():
        state, error = make(), ""
        try:
            _read(Path(folder) / name, node, state)
        except (Exception, CheckpointException) as cause:  # Torch raises whatever its parts do: not this one.
            error = str(cause) or repr(cause)
        errors = [each.decode() for each in node.exchange(error.encode())]
        if not any(errors):
            return state
        log.error("%s cannot be read (%s): the one before it is tried", Path(folder) / name, next(filter(None, errors)))
    return None


def _read(path: Path, node: Node, state: dict[str, Any]) -> None:
    load_together(state[TENSORS], checkpoint_id=path, process_group=node.group)
    tensors = state[TENSORS]
    state.clear()  # What an older checkpoint does not have is not that of this process.
    state.update({TENSORS: tensors, **load(path / "run.pt")})
    own = path / f"rank-{node.place}-of-{node.size}.pt"
    state[OWN] = load(own)[OWN] if own.exists() else None
