"""`pccl config`: what a build of a program in C needs to know. Owns where headers and library lie."""

import importlib.util
from pathlib import Path
from typing import TextIO

from pccl.cli.exits import Exit


def installed() -> Path | None:
    """The folder with `include/` and `lib/`: beside the native part, wherever the Python sources are."""
    native = importlib.util.find_spec("pccl._native")
    root = None if native is None or native.origin is None else Path(native.origin).resolve().parent
    return root if root is not None and (root / "lib" / "libpccl.so").exists() else None


def tell(wanted: dict[str, bool], out: TextIO, errors: TextIO) -> int:
    """Print what was asked for, on one line, in the order of flags."""
    root = installed()
    if root is None:
        print("pccl config: this installation has no lib/libpccl.so: the C API is built on Linux only", file=errors)
        return Exit.BROKE
    flags = {
        "cflags": f"-I{root}/include",
        "libs": f"-L{root}/lib -Wl,-rpath,{root}/lib -lpccl",
        "cmakedir": f"{root}/lib/cmake/pccl",
    }
    if not any(wanted.values()):
        print("pccl config: pass --cflags, --libs or --cmakedir", file=errors)
        return Exit.USAGE
    print(*(flag for name, flag in flags.items() if wanted[name]), file=out)
    return Exit.DONE
