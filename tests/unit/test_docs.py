"""`docs/protocol.md` and `docs/recovery.md` say what the code says: their tables are made from the code's own, files
that they name exist, and rules that the code names are there.

python -m tests.unit.test_docs      writes the tables again
"""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from pccl.core.effects.master import MasterEffect, MasterEvent
from pccl.core.effects.peer_effects import PeerEffect
from pccl.core.effects.peer_events import PeerEvent
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.master.collective import CollectiveStage
from pccl.core.master.link import LinkStage
from pccl.core.master.recovery.gathering import GatheringStage
from pccl.core.master.roster import MemberStage
from pccl.core.master.sync import SyncStage
from pccl.core.master.visits import VisitStage
from pccl.core.messages.lanes import Between
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import ToPeer
from pccl.core.peer.collectives import AttemptStage
from pccl.core.peer.masters import SearchStage
from pccl.core.peer.stages import PeerStage
from pccl.core.staged import Stage

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "protocol.md", ROOT / "docs" / "recovery.md")
STAGES: dict[str, type[Stage]] = {
    "member": MemberStage,
    "gathering": GatheringStage,
    "link": LinkStage,
    "collective": CollectiveStage,
    "peer": PeerStage,
    "search": SearchStage,
    "attempt": AttemptStage,
    "sync": SyncStage,
    "visit": VisitStage,
}


def stage_table(stages: type[Stage]) -> str:
    rows = ["| stage | means | can become |", "| --- | --- | --- |"]
    for stage in stages:
        successors = ", ".join(str(stages[name]) for name in stage.successors)
        rows.append(f"| {stage} | {stage.meaning} | {successors or '–'} |")
    return "\n".join(rows)


def first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")


def message_table(union: object) -> str:
    rows = ["| message | fields | says |", "| --- | --- | --- |"]
    for kind in union.__args__:  # type: ignore[attr-defined]
        fields = ", ".join(field.name for field in msgspec.structs.fields(kind))
        rows.append(f"| `{kind.__name__}` | {fields or '–'} | {first_line(kind)} |")
    return "\n".join(rows)


def limit_table(*limits: type[msgspec.Struct]) -> str:
    rows = ["| limit | default | side |", "| --- | --- | --- |"]
    for kind in limits:
        side = kind.__name__.removesuffix("Limits").lower()
        rows += [f"| `{field.name}` | {field.default:g} | {side} |" for field in msgspec.structs.fields(kind)]
    return "\n".join(rows)


def tables() -> dict[str, str]:
    made = {f"stages-{name}": stage_table(stages) for name, stages in STAGES.items()}
    made["to-master"] = message_table(ToMaster)
    made["to-peer"] = message_table(ToPeer)
    made["between"] = message_table(Between)
    made["to-observer"] = message_table(ToObserver)
    made["master-events"] = message_table(MasterEvent)
    made["master-effects"] = message_table(MasterEffect)
    made["peer-events"] = message_table(PeerEvent)
    made["peer-effects"] = message_table(PeerEffect)
    made["limits"] = limit_table(MasterLimits, PeerLimits)
    return made


def place(name: str) -> str:
    return rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"


def filled(text: str) -> str:
    """The page with every table between its markers made again."""
    for name, table in tables().items():
        text = re.sub(place(name), lambda match, table=table: match[1] + table + "\n" + match[2], text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def rules(text: str) -> set[tuple[str, int]]:
    """Section and number of each rule of a page: an entry of a numbered list, or a row of a numbered table."""
    section, found = "", set()
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif match := re.match(r"(?:\| )?(\d+)(?:\. | \| )", line):
            found.add((section, int(match[1])))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_the_pages_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), "run: python -m tests.unit.test_docs"


def test_every_table_of_the_code_is_on_a_page() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in tables() if len(re.findall(place(name), text, re.DOTALL)) != 1] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_files_and_functions_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "api|compat|core|net|wire|security|dataplane|training|views|c_api|cli|native|tests|bench"
    paths = set(re.findall(rf"`((?:{folders})/[\w./]*)`", text))
    assert [path for path in paths if not any((base / path).exists() for base in (ROOT, ROOT / "src" / "pccl"))] == []
    module = r"`((?:api|core|net|wire|security|dataplane|training|c_api)/[\w/]+\.py)`"
    named = re.findall(rf"{module}(?:,|\s+\()\s*((?:`\w+`(?:,\s+|\sand\s)?)+)\)", text)
    assert page not in PAGES or len(named) > 10
    missing = [
        f"{path}: {function}"
        for path, functions in named
        for function in re.findall(r"`(\w+)`", functions)
        if not re.search(
            rf"\bdef {function}\b|self\.{function}\b(?!\()|^class {function}\b",
            (ROOT / "src" / "pccl" / path).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert missing == []


def test_the_rules_that_the_code_names_are_on_the_pages() -> None:
    known = {(page.name, *rule) for page in PAGES for rule in rules(page.read_text(encoding="utf-8"))}
    assert len(known) > 100, "the pages have rules"
    missing = []
    for source in sorted((ROOT / "src").rglob("*.py")):
        text = re.sub(r"\s+#?\s*", " ", source.read_text(encoding="utf-8"))
        for page, section, number in re.findall(r"\b(protocol\.md|recovery\.md), ([A-Z][a-z ]+?) (\d+)", text):
            if (page, section, int(number)) not in known:
                missing.append(f"{source.name}: {page}, {section} {number}")
    assert missing == []


def test_the_sections_that_the_code_names_are_on_the_pages() -> None:
    known = {page.name: re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE) for page in PAGES}
    missing, seen = [], 0
    for source in sorted((ROOT / "src").rglob("*.py")):
        text = re.sub(r"\s+#?\s*", " ", source.read_text(encoding="utf-8"))
        named = re.findall(r'\b(protocol\.md|recovery\.md), ((?:"[^"]+"(?: and )?)+|[A-Z][^")\d;:.]*)', text)
        for page, sections in named:
            for section in re.findall(r'"([^"]+)"', sections) or [sections.strip()]:
                seen += 1
                if section not in known[page]:
                    missing.append(f"{source.relative_to(ROOT)}: {page}, {section}")
    assert seen > 20, "modules of the core name the section with their rules"
    assert missing == []


def test_every_stage_can_be_reached_and_left() -> None:
    for name, stages in STAGES.items():
        reachable = {successor for stage in stages for successor in stage.successors}
        first = next(iter(stages))
        assert reachable | {first.name} == set(stages.__members__), f"unreachable or unknown stage of {name}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
