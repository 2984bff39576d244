"""What happened, in lines for a person, and a hash of them for the test that a seed always means the same run."""

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from pccl.core.fields import Flow, Party

_SHORT_IDS = 8
_SAME = ("label", "digest", "ticket", "lanes_max", "threads")


class Trace:
    """Lines of a run. Formatting costs more than simulating, so nothing is formatted unless somebody listens."""

    def __init__(self, show: Callable[[str], object] | None) -> None:
        self.on = show is not None
        self._show = show
        self._hash = hashlib.sha256()

    def line(self, now: float, who: str, text: str) -> None:
        """One line; callers check `on` first when the text is costly."""
        if self._show is not None:
            line = f"{now:10.3f} {who:<8} {text}"
            self._hash.update(line.encode() + b"\n")
            self._show(line)

    def digest(self) -> str:
        """The hash of all lines."""
        return self._hash.hexdigest()


def tell(value: Any) -> str:
    """An event, effect or message, with short ids and without what is always the same."""
    if isinstance(value, Struct):
        fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
        inner = " ".join(
            f"{name}={tell(field)}"
            for name, field in fields
            if name not in _SAME and field not in ("", (), b"", Party(), Flow()) and (name, field) != ("strands", 1)
        )
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return "[" + ", ".join(tell(item) for item in value) + "]"
    if isinstance(value, str) and len(value) == 32 and " " not in value:
        return value[:_SHORT_IDS]
    if hasattr(value, "name"):
        return str(value.name)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
