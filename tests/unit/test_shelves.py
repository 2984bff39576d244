"""Every page stands on a shelf, once, in the same order in both lists; no link leads nowhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)")


def linked(path: Path, text: str) -> list[Path]:
    return [(path.parent / target).resolve() for target in LINK.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [target for target in linked(page, page.read_text(encoding="utf-8")) if not target.exists()]
    assert missing == []


def test_every_page_is_on_a_shelf() -> None:
    index, front = ROOT / "docs" / "README.md", ROOT / "README.md"
    shelved = linked(index, index.read_text(encoding="utf-8"))
    assert sorted(shelved) == sorted({*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"} - {index})
    read_on = front.read_text(encoding="utf-8").partition("## Read on")[2]
    assert [page for page in linked(front, read_on) if page != index] == shelved
