"""Other libraries' loops and clusters. Each module imports its library, so it is imported only when it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def advise(extra: str) -> Iterator[None]:
    """Say how to get a library that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"pccl.integrations.{extra} needs {error.name}, which is not installed; pip install 'pccl[{extra}]'",
            name=error.name,
        ) from error
