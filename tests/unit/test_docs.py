"""`docs/protocol.md` says what the code says: its tables are made from the code's own.

python -m tests.unit.test_docs      writes them anew
"""

import inspect
import re
from enum import Enum
from pathlib import Path

import msgspec

from pccl.core import effects, messages
from pccl.core.admission import MEMBER_STAGES
from pccl.core.collectives import LIFE_STAGES
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.peer import PEER_STAGES
from pccl.core.runs import RUN_STAGES
from pccl.core.syncs import SYNC_STAGES
from pccl.core.wiring import LINK_STAGES

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
STAGES: dict[str, dict[Enum, tuple[str, tuple[Enum, ...]]]] = {
    "member": MEMBER_STAGES,  # type: ignore[dict-item]
    "link": LINK_STAGES,  # type: ignore[dict-item]
    "life": LIFE_STAGES,  # type: ignore[dict-item]
    "peer": PEER_STAGES,  # type: ignore[dict-item]
    "run": RUN_STAGES,  # type: ignore[dict-item]
    "sync": SYNC_STAGES,  # type: ignore[dict-item]
}


def stage_table(stages: dict[Enum, tuple[str, tuple[Enum, ...]]]) -> str:
    rows = ["| stage | means | can become |", "| --- | --- | --- |"]
    for stage, (meaning, successors) in stages.items():
        rows.append(f"| {stage.value} | {meaning} | {', '.join(each.value for each in successors) or '–'} |")
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
    made["to-master"] = message_table(messages.ToMaster)
    made["to-peer"] = message_table(messages.ToPeer)
    made["between"] = message_table(messages.Between)
    made["master-events"] = message_table(effects.MasterEvent)
    made["master-effects"] = message_table(effects.MasterEffect)
    made["peer-events"] = message_table(effects.PeerEvent)
    made["peer-effects"] = message_table(effects.PeerEffect)
    made["limits"] = limit_table(MasterLimits, PeerLimits)
    return made


def filled(text: str) -> str:
    """The document with every table between its markers made anew."""
    for name, table in tables().items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        assert re.search(pattern, text, re.DOTALL), f"docs/protocol.md has no place for the table {name}"
        text = re.sub(pattern, lambda match, table=table: match[1] + table + "\n" + match[2], text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def test_the_tables_in_the_document_are_those_of_the_code() -> None:
    text = PROTOCOL.read_text()
    assert text == filled(text), "run: python -m tests.unit.test_docs"


def test_every_stage_can_be_reached_and_left() -> None:
    for name, stages in STAGES.items():
        reachable = {successor for _, successors in stages.values() for successor in successors}
        first = next(iter(stages))
        assert reachable | {first} == set(stages), f"unreachable stage of {name}"


if __name__ == "__main__":
    PROTOCOL.write_text(filled(PROTOCOL.read_text()))
