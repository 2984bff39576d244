"""What optimizers hold for each parameter, by names that are the same on all peers: tensors, and plain values such as a
count of steps.

Owns these names, and how plain values travel and come back. Must not know what of it is shared or saved, or how.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import xxhash
from torch import optim

from pccl import UsageError

Value = bool | int | float

_FORMS = {bool: "=q?7x", int: "=qq", float: "=qd"}
"""A value in memory: its kind, and what it is."""

_KINDS = list(_FORMS)


class Optimizers:
    """Those of a run."""

    def __init__(self, optimizers: Sequence[optim.Optimizer], names: dict[int, str]) -> None:
        """`names`: of parameters, by their identity."""
        self._optimizers, self._names = optimizers, names
        self._packed = torch.zeros(0, dtype=torch.int64)

    def _states(self) -> Iterator[tuple[str, optim.Optimizer, dict[str, Any]]]:
        """By parameter."""
        for number, optimizer in enumerate(self._optimizers):
            for group in optimizer.param_groups:
                for place, parameter in enumerate(group["params"]):
                    name = self._names.get(id(parameter), str(place))
                    yield f"optimizer {number}.{name}", optimizer, optimizer.state.get(parameter, {})

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """As they are."""
        return [
            (f"{name}.{key}", value)
            for name, _, state in self._states()
            for key, value in sorted(state.items())
            if isinstance(value, torch.Tensor)
        ]

    def values(self) -> dict[str, Value]:
        """The numbers beside the tensors. Raises `UsageError` for any other value: it would be lost."""
        found: dict[str, Value] = {}
        for name, optimizer, state in self._states():
            for key, value in sorted(state.items()):
                if isinstance(value, torch.Tensor) or value is None:
                    continue
                if type(value) not in _FORMS or (type(value) is int and not -(2**63) <= value < 2**63):
                    raise UsageError(
                        f"training: {type(optimizer).__name__} must keep tensors and numbers of 64 bits, which can be "
                        f"saved and given to a newcomer, got {key!r} of type {type(value).__name__}; pass "
                        'join="fresh" to DiLoCo. A sharded model cannot be saved with this optimizer'
                    )
                found[f"{name}.{key}"] = value
        return found

    def put(self, values: dict[str, Value]) -> None:
        """Set those that are there."""
        for name, _, state in self._states():
            for key in state:
                if f"{name}.{key}" in values:
                    state[key] = values[f"{name}.{key}"]

    def packed(self) -> list[tuple[str, torch.Tensor]]:
        """All values as one tensor, if there are any. What comes into its memory counts when it is unpacked."""
        values = self.values()
        words = b"".join(struct.pack(_FORMS[type(each)], _KINDS.index(type(each)), each) for each in values.values())
        self._packed = torch.frombuffer(bytearray(words), dtype=torch.int64) if values else self._packed[:0]
        names = xxhash.xxh32_hexdigest("\n".join(values).encode())
        return [(f"optimizer values {names}", self._packed)] if values else []

    def unpack(self) -> None:
        """Take over what has come into the memory that was given last, once."""
        words, self._packed = self._packed.numpy().tobytes(), self._packed[:0]
        if words:
            self.put({name: _value(words[16 * place :][:16]) for place, name in enumerate(self.values())})


def _value(words: bytes) -> Value:
    (kind,) = struct.unpack_from("=q", words)
    value: Value = struct.unpack(_FORMS[_KINDS[kind]], words)[1]
    return value


def kinds_of(optimizers: Sequence[optim.Optimizer]) -> list[str]:
    """Their names."""
    return [type(each).__name__ for each in optimizers]


def check_kinds(here: list[str], saved: list[str] | None) -> None:
    """Raises `UsageError` if other optimizers were saved: one kind cannot go on with what another has. Versions before
    this one did not save which."""
    if saved is not None and saved != here:
        raise UsageError(
            f"load_state_dict: the optimizers must be those that were saved ({', '.join(saved)}), got "
            f"{', '.join(here)}; make these, or load another checkpoint"
        )
