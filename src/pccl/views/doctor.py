"""What a doctor found, as lines for a person and as facts for a program.

Owns the form. Must not know how anything is found out.
"""

from dataclasses import asdict, dataclass
from typing import Any

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: str
    """`ok`, `warn` (it may do harm) or `FAIL` (a peer here will not work)."""
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Setting:
    """One setting in force, and where it came from."""

    name: str
    value: str
    source: str
    """`argument`, `environment` or `default`."""


def lines(findings: list[Finding], settings: list[Setting]) -> list[str]:
    """All of it, for a person."""
    width = max(len(each.check) for each in findings)
    told = []
    for each in findings:
        told.append(f"{each.level:<4}  {each.check.ljust(width)}  {each.what}")
        if each.fix:
            told.append(f"      {' ' * width}  fix: {each.fix}")
    told += ["", *(f"{each.name}={each.value} ({each.source})" for each in settings if each.source != "default")]
    defaults = sum(each.source == "default" for each in settings)
    told.append(f"{defaults} settings have their defaults (--json lists them)")
    return told


def facts(findings: list[Finding], settings: list[Setting]) -> dict[str, Any]:
    """The same for a program."""
    worst = max((each.level for each in findings), key=(OK, WARN, FAIL).index, default=OK)
    return {
        "version": 1,
        "worst": worst,
        "findings": [asdict(each) for each in findings],
        "settings": [asdict(each) for each in settings],
    }
