"""One Python file of ours, parsed, as the rules about sources see it.

Owns where a file stands in the package. Must not know the rules.
"""

import ast
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Source:
    """One Python file. The path is relative to the repository, such as `src/pccl/core/master/master.py`."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> "Source":
        return cls(PurePosixPath(path), text, ast.parse(text, filename=path))

    @property
    def module(self) -> tuple[str, ...]:
        """Names below `pccl`: ("core", "master"). Empty for the package itself and for files outside `src/pccl/`."""
        if self.path.parts[:2] != ("src", "pccl"):
            return ()
        names = self.path.with_suffix("").parts[2:]
        return names[:-1] if names[-1] == "__init__" else names

    @property
    def in_package(self) -> bool:
        return self.path.parts[:2] == ("src", "pccl")

    @property
    def in_core(self) -> bool:
        return self.module[:1] == ("core",)

    def at(self, node: ast.AST, sentence: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {sentence}"
