"""How a checker says that a rule was broken."""


class Violation(Exception):
    """A rule of the protocol was broken; `checker` is the one that noticed."""

    def __init__(self, checker: str, what: str) -> None:
        super().__init__(f"[{checker}] {what}")
        self.checker = checker
        self.what = what

    def __reduce__(self) -> tuple[type["Violation"], tuple[str, str]]:
        return (Violation, (self.checker, self.what))
