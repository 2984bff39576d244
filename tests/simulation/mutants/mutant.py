"""One rule of the core, and how to break it."""

from collections.abc import Callable
from inspect import Parameter, getattr_static, signature
from typing import Any
from unittest.mock import patch

from msgspec import Struct


class Mutant(Struct, frozen=True):
    """A rule and how to break it."""

    rule: str
    owner: Any
    name: str
    broken: Any
    first: int = 0
    """The seed to begin with: some rules matter only in one play of hundreds."""
    hostile: bool = False
    """Its seeds are played with enemies in each."""
    parties: bool = False
    """Its seeds are played with machines of several peers in each."""
    aimed: str = ""
    """Aimed schedules of this family are played instead of seeds: no seed in hundreds has the luck."""

    def patch(self) -> Any:
        """The rule, broken. A method that is replaced by one with other parameters would be noticed by its own
        exception, and show nothing about the checkers."""
        rule = getattr_static(self.owner, self.name)
        if callable(rule) and not isinstance(rule, type):
            parameters, broken = (list(signature(each).parameters.values()) for each in (rule, self.broken))
            any_number = any(each.kind is Parameter.VAR_POSITIONAL for each in broken)
            alike = [_shape(each) for each in parameters] == [_shape(each) for each in broken]
            assert any_number or alike, f"{self.rule}: {self.name} takes {[each.name for each in parameters]}"
        return patch.object(self.owner, self.name, self.broken)


def _shape(parameter: Parameter) -> tuple[str, bool]:
    return parameter.name, parameter.default is Parameter.empty


# The broken methods take `self` and whatever else; types would only repeat those of the methods they replace.
def around(method: Callable[..., Any], name: str, replacement: Any) -> Callable[..., Any]:
    """The method, with an attribute of its object replaced while it runs."""

    def broken(self: Any, *arguments: Any) -> Any:
        with patch.object(self, name, replacement):
            return method(self, *arguments)

    return broken
