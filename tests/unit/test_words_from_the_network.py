"""Words that others choose: escape codes, ends of lines, marks that turn the direction, in every text of every message.

Tried in each direction: what comes out of the decoder, and what a master's operator and a peer's user get to see.
"""

import json
import logging
import socket
import threading
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from pccl import Communicator, MasterNode, PCCLError
from pccl.core.fields import Identity, KickKind, Label
from pccl.core.messages.lanes import Between, LaneAnswer
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import Join, ToMaster
from pccl.core.messages.to_peer import Kick, ToPeer, Waiting, Welcome
from pccl.views import status as view
from pccl.views.top import screen
from pccl.wire.codec import decode_between, decode_to_master, decode_to_observer, decode_to_peer, encode
from pccl.wire.framing import Purpose, WireError, frame, preamble
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S

HOSTILE = "\x1b[2J\x1b]0;owned\x07a\r\nb\u202e\u2066\x00\x85\u2028%s{0}"
DIRECTIONS = {
    decode_to_master: get_args(ToMaster),
    decode_to_peer: get_args(ToPeer),
    decode_between: get_args(Between),
    decode_to_observer: get_args(ToObserver),
}


def made(info: inspect.Type) -> Any:
    """A value of this type with hostile words wherever a text may be."""
    match info:
        case inspect.StructType():
            return info.cls(**{field.name: made(field.type) for field in info.fields})
        case inspect.EnumType():
            return next(iter(info.cls))
        case inspect.UnionType(types=types):
            return made(types[0])
        case inspect.LiteralType():
            return info.values[0]
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return info.ge
        case inspect.FloatType():
            return 1.0
        case inspect.StrType(pattern=None):
            return HOSTILE[: info.max_length]
        case inspect.StrType():
            return "x"
        case inspect.BytesType():
            return bytes(info.min_length or 0)
        case inspect.VarTupleType():
            return (made(info.item_type),) * max(1, info.min_length or 0)
    raise NotImplementedError(f"teach this test about {info}")


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts(each)]
    return [text for each in value for text in texts(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("decode", "kind"),
    [pytest.param(decode, kind, id=kind.__name__) for decode, kinds in DIRECTIONS.items() for kind in kinds],
)
def test_no_text_of_a_message_comes_in_as_it_is(decode, kind):
    message = made(inspect.type_info(kind))
    arrived = decode(encode(message))
    assert all(text.isprintable() for text in texts(msgspec.to_builtins(arrived, builtin_types=(bytes,))))
    assert decode(encode(arrived)) == arrived, "what is clean stays as it is"


def test_lone_surrogates_are_no_text():
    body = encode(Waiting("surrogate")).replace(b"surrogate", b"\xed\xa0\x80aaaaaa")
    with pytest.raises(WireError, match="UTF-8"):
        decode_to_peer(body)


# ── what people see ──────────────────────────────────────────────────────────────────────────────────────────────────


def lines(caplog):
    return [text for record in caplog.records for text in (record.getMessage(), str(record.__dict__.get("peer_name")))]


def test_a_hostile_candidate_in_front_of_an_operator(caplog):
    caplog.set_level(logging.DEBUG, logger="pccl")
    label = Label(HOSTILE, HOSTILE, 7, HOSTILE[:32])
    with MasterNode("127.0.0.1:0") as master:
        with socket.create_connection(("127.0.0.1", master.port), timeout=HANG_S) as sock:
            join = Join(Identity("a1" * 16, 0, "", 1234, 0, label=label))
            sock.sendall(preamble(Purpose.CONTROL) + frame(encode(join)) + frame(encode(made(info_of("LinkDown")))))
            wait_until(lambda: any("a1a1a1a1" in line for line in lines(caplog)))
            assert all(sentence.isprintable() for sentence in master.explain())
        wait_until(lambda: any("is gone" in line or "kicked" in line for line in lines(caplog)))
    assert all(line.isprintable() for line in lines(caplog))


def info_of(name):
    return inspect.type_info(next(kind for kind in get_args(ToMaster) if kind.__name__ == name))


class FalseMaster:
    """Answers a peer with these messages."""

    def __init__(self, *answers):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self._said = preamble(Purpose.CONTROL) + b"".join(frame(encode(answer)) for answer in answers)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        sock, _ = self.listener.accept()
        with sock:
            sock.sendall(self._said)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass


@pytest.mark.parametrize(
    "answers",
    [(Kick(KickKind.PROTOCOL, HOSTILE),), (Welcome("run"), Waiting(HOSTILE), Kick(KickKind.FULL, HOSTILE))],
    ids=["at once", "later"],
)
def test_a_false_master_in_front_of_a_user(caplog, answers):
    caplog.set_level(logging.DEBUG, logger="pccl")
    false = FalseMaster(*answers)
    with pytest.raises(PCCLError) as raised:
        Communicator(false.address).connect(n_attempts=1)
    false.listener.close()
    assert "owned" in str(raised.value)
    assert str(raised.value).isprintable()
    assert all(line.isprintable() for line in lines(caplog))


def test_a_status_of_a_false_master_on_a_terminal():
    (kind,) = [kind for kind in get_args(ToObserver) if kind.__name__ == "Status"]
    status = decode_to_observer(encode(made(inspect.type_info(kind))))
    shown = [*view.lines(status), *(line.text for line in screen("127.0.0.1:1", status, [], 24))]
    assert any("owned" in line for line in shown)
    assert all(line.isprintable() for line in shown)
    assert json.dumps(msgspec.to_builtins(status)).isprintable()


def test_a_lane_answered_with_words():
    assert decode_between(encode(LaneAnswer(False, HOSTILE))).reason.isprintable()
