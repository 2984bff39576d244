"""`docs/errors.md` says of every exception what `errors.py` says of it.

python -m tests.unit.test_errors_page      writes that part again
"""

import inspect
import re
import textwrap
from pathlib import Path

import pytest

import pccl
from pccl import errors
from pccl.errors import PCCLError

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
PLACE = re.compile(r"(<!-- errors -->\n).*?(<!-- /errors -->)", re.DOTALL)
PARTS = ("Cause", "Remedy", "Attributes")


class Undocumented(Exception):
    """A docstring is not in the form that the page needs; the sentence says why."""


def below(kind: type[PCCLError]) -> list[type[PCCLError]]:
    """This class and those below it, as they stand in the file."""
    return [
        kind,
        *(each for child in kind.__subclasses__() if child.__module__ == errors.__name__ for each in below(child)),
    ]


def attributes(kind: type[PCCLError]) -> set[str]:
    """Those that its own `__init__` sets. Every class has `result`, which is described once."""
    made = kind.__dict__.get("__init__")
    return set(re.findall(r"self\.(\w+) =", inspect.getsource(made))) - {"result"} if made else set()


def described(kind: type[PCCLError]) -> dict[str, str]:
    """The paragraphs of its docstring by what they are about; the first is about what happened."""
    first, *rest = (paragraph.replace("\n", " ").strip() for paragraph in (inspect.getdoc(kind) or "").split("\n\n"))
    found = {"": first}
    for paragraph in rest:
        about, colon, text = paragraph.partition(": ")
        if not colon or about not in PARTS or about in found:
            raise Undocumented(f"{kind.__name__}: a paragraph must open with one of {PARTS}, each once: {paragraph!r}")
        found[about] = text
    missing = [about for about in ("", "Cause", "Remedy") if not found.get(about)]
    missing += [name for name in sorted(attributes(kind)) if f"`{name}`" not in found.get("Attributes", "")]
    if missing:
        raise Undocumented(f"{kind.__name__}: its docstring must also describe {missing}")
    return found


def section(kind: type[PCCLError]) -> str:
    found, parent = described(kind), kind.__bases__[0]
    above = f"A `{parent.__name__}`. " if issubclass(parent, PCCLError) else ""
    told = [f"{above}Result code {kind.result.name} ({kind.result.value}). {found['']}"]
    told += [f"**{about}:** {found[about]}" for about in PARTS if about in found]
    return "\n\n".join([f"### `{kind.__name__}`", *(textwrap.fill(each, 120) for each in told)])


def tree(kind: type[PCCLError]) -> list[str]:
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    lines = [kind.__name__]
    for child in children:
        branch, beside = ("└─ ", "   ") if child is children[-1] else ("├─ ", "│  ")
        first, *rest = tree(child)
        lines += [branch + first, *(beside + line for line in rest)]
    return lines


def filled(text: str) -> str:
    """The page with the part between the markers written again."""
    assert PLACE.search(text), "docs/errors.md has no place for the errors"
    made = "\n\n".join(
        ["\n".join(f"    {line}" for line in tree(PCCLError)), *(section(kind) for kind in below(PCCLError))]
    )
    return PLACE.sub(lambda match: f"{match[1]}\n{made}\n\n{match[2]}", text)


def test_the_page_says_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == filled(text), "run: python -m tests.unit.test_errors_page"


def test_every_exception_can_be_imported_from_the_package() -> None:
    assert {kind.__name__ for kind in below(PCCLError)} <= set(pccl.__all__)


def test_every_exception_of_the_module_is_on_the_page() -> None:
    raised = {each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, Exception)}
    assert raised == set(below(PCCLError))


SILENT = type("Silent", (), {"__doc__": "It failed.\n\nCause: a fault."})
CHATTY = type("Chatty", (), {"__doc__": "It failed.\n\nCause: a fault.\n\nRemedy: mend it.\n\nMoral: none."})


class Secretive(Exception):
    """It failed.

    Cause: a fault.

    Remedy: mend it.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer


@pytest.mark.parametrize(
    ("kind", "sentence"), [(SILENT, "Remedy"), (CHATTY, "'Moral: none.'"), (Secretive, "describe \\['peer'\\]")]
)
def test_a_docstring_that_lacks_something_is_reported(kind: type[PCCLError], sentence: str) -> None:
    with pytest.raises(Undocumented, match=sentence):
        described(kind)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
