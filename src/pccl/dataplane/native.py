"""The face of the native part towards Python, and the only importer of `_native`.

Owns the translation between native values and ours. Must not know peers, the master, or why anything runs. Where the
native part is missing, importing this module fails: a slower replacement is chosen by name, never in silence.
"""

from dataclasses import dataclass

from pccl import _native


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """How the native part was built, and what the machine it runs on can do."""

    compiler: str
    cxx_standard: int
    """The value of `__cplusplus`: 202002 is C++20."""
    instruction_sets: tuple[str, ...]
    """Found at run time; of those that kernels choose between."""

    def __str__(self) -> str:
        sets = ", ".join(self.instruction_sets) or "none known"
        return f"{self.compiler}, C++ {self.cxx_standard}, instruction sets: {sets}"


def build_info() -> BuildInfo:
    """What to put first in a report about speed or about a crash."""
    facts = _native.build_info()
    return BuildInfo(facts["compiler"], facts["cxx_standard"], tuple(facts["instruction_sets"]))
