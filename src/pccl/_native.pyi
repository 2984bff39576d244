"""What `native/bindings.cpp` exports. Written by hand: it is the reviewed face of the native part."""

from typing import TypedDict

class _BuildInfo(TypedDict):
    compiler: str
    cxx_standard: int
    instruction_sets: list[str]

def build_info() -> _BuildInfo: ...
