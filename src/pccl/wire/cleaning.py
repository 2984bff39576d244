"""Texts of a message that came in, made fit for a terminal, a log and an exception.

Owns the walk over a message. What has a text in it is read from the structs once, so that a new field is covered
without a change here; a text with a pattern of its own is bounded already. This is the one place where words from the
network come in: behind it none has escape codes, ends of lines, or marks that turn the direction of what follows. Must
not know any message by name.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import inspect, structs

from pccl.core.text import clip

Cleaner = Callable[[Any], Any]


def cleaner_of(info: inspect.Type) -> Cleaner | None:
    """What cleans a value of this type; None if there is no text in it that could be unclean."""
    match info:
        case inspect.StrType(pattern=None):
            return _clean_text
        case inspect.StructType(fields=fields):
            cleaners = {field.name: found for field in fields if (found := cleaner_of(field.type)) is not None}
            return partial(_clean_struct, cleaners) if cleaners else None
        case inspect.VarTupleType(item_type=item):
            found = cleaner_of(item)
            return None if found is None else partial(_clean_tuple, found)
        case inspect.UnionType(types=types):
            kinds = {_kind(each): found for each in types if (found := cleaner_of(each)) is not None}
            return partial(_clean_one_of, kinds) if kinds else None
    return None


def _kind(info: inspect.Type) -> type:
    return info.cls if isinstance(info, inspect.StructType) else str


def _clean_text(text: str) -> str:
    return text if text.isprintable() else clip(text)


def _clean_struct(cleaners: dict[str, Cleaner], value: Any) -> Any:
    changed = {}
    for name, clean in cleaners.items():
        held = getattr(value, name)
        if (cleaned := clean(held)) is not held:
            changed[name] = cleaned
    return structs.replace(value, **changed) if changed else value


def _clean_tuple(clean: Cleaner, values: tuple[Any, ...]) -> tuple[Any, ...]:
    cleaned = tuple(clean(value) for value in values)
    return cleaned if any(new is not old for new, old in zip(cleaned, values, strict=True)) else values


def _clean_one_of(cleaners: dict[type, Cleaner], value: Any) -> Any:
    clean = cleaners.get(type(value))
    return value if clean is None else clean(value)
