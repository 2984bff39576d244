"""Which release of the library this is. Owns the lookup, made when asked: it takes longer than all imports."""

from functools import cache


@cache
def release() -> str:
    """The version that is installed; `dev` for sources that are used without an installation."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pccl")
    except PackageNotFoundError:
        return "dev"
