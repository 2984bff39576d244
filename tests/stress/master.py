"""A master like `pccl master`, but one that ends with its parent, however that ends.

Owns nothing else: what is stressed is the real command.
"""

import os
import sys
import threading

from pccl.cli import main


def _end_with_the_parent() -> None:
    """The parent writes nothing here, and the kernel closes the other end even when the parent was killed."""
    while os.read(0, 1 << 16):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    sys.exit(main(["master", *sys.argv[1:]]))
