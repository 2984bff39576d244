"""`pccl version`: what is installed, for a report."""

import platform
from typing import TextIO

from pccl.release import release
from pccl.wire.framing import VERSION


def native_part() -> str:
    """How the native part was built; or why it is not there."""
    try:
        from pccl.dataplane.native import build_info
    except ImportError as error:
        return f"missing ({error})"
    return str(build_info())


def tell(out: TextIO) -> int:
    """Print it."""
    print(f"pccl {release()}, protocol version {VERSION}", file=out)
    print(f"Python {platform.python_version()} on {platform.platform()}", file=out)
    print(f"native part: {native_part()}", file=out)
    return 0
