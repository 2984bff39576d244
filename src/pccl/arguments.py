"""Checks of what users pass, whose errors all have one form: what it must be, what came, and what to do.

Owns that form. Must not know what the arguments are for.
"""

import math
from enum import IntEnum
from typing import TypeVar

from pccl.errors import UsageError
from pccl.types import Result

_Kind = TypeVar("_Kind")
_Choice = TypeVar("_Choice", bound=IntEnum)


def of_kind(kind: type[_Kind], given: object, what: str, remedy: str = "") -> _Kind:
    """The same, if it is of this class; `what` names call and argument."""
    if not isinstance(given, kind) or (kind is int and isinstance(given, bool)):
        raise _wrong(what, _a(kind), _a(type(given)), remedy)
    return given


def choice(kind: type[_Choice], given: object, what: str) -> _Choice:
    """A member of one of PCCL's enumerations, or its number. That of another enumeration is refused: it may mean
    something else there."""
    if isinstance(given, kind) or (type(given) is int and given in kind._value2member_map_):
        return kind(given)
    raise _wrong(what, f"{_a(kind)} ({', '.join(each.name for each in kind)})", repr(given), "")


def seconds(setting: str, value: object, least: float) -> float:
    """A setting that is a time, as a number or in text."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not (least <= found < math.inf):
        raise UsageError(f"{setting} must be a number of seconds from {least:g} up, got {value!r}")
    return found


def integer(setting: str, value: object, least: int, most: int) -> int:
    """A setting that is a whole number, as such or in text."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not (least <= number <= most):
        raise UsageError(f"{setting} must be an integer from {least} to {most}, got {value!r}")
    return number


def _wrong(what: str, wanted: str, got: str, remedy: str) -> UsageError:
    return UsageError(f"{what} must be {wanted}, got {got}{'; ' if remedy else ''}{remedy}", Result.INVALID_ARGUMENT)


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"
