"""Messages to bytes and back.

Owns the encoding (MessagePack: a map of field names, the struct's name under "type") and two promises: decoding raises
`WireError` and nothing else, whatever the bytes, and every text in what it returns is printable. What a message may
hold is stated once, in `core.messages`; this module must not know any message by name.

Fields that a struct does not have are skipped, not refused. Both ends have the same version, so an honest sender has
them only when a release added an optional field without a new version, and that is worth allowing: peers of two
releases can then train together. A hostile sender gains nothing: what is skipped is neither kept nor allocated, and
the frame's limit bounds the time.
"""

from typing import Any, Generic, TypeVar, cast

from msgspec import DecodeError, ValidationError
from msgspec.inspect import type_info
from msgspec.msgpack import Decoder, Encoder

from pccl.core.messages.lanes import Between
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import ToPeer
from pccl.wire.cleaning import cleaner_of
from pccl.wire.framing import WireError

_ERROR_TEXT_MAX = 200
"""Characters: one line of a log. The texts are made of type and field names of ours, so none is cut in practice."""

_Message = TypeVar("_Message")


class _Reader(Generic[_Message]):
    """Reads the messages of one direction."""

    def __init__(self, messages: Any) -> None:
        self._decoder: Decoder[_Message] = Decoder(messages)
        self._clean = cleaner_of(type_info(messages))

    def read(self, body: bytes) -> _Message:
        message = self._decoder.decode(body)
        return message if self._clean is None else cast(_Message, self._clean(message))


_encoder = Encoder()
_to_master: _Reader[ToMaster] = _Reader(ToMaster)
_to_peer: _Reader[ToPeer] = _Reader(ToPeer)
_between: _Reader[Between] = _Reader(Between)
_to_observer: _Reader[ToObserver] = _Reader(ToObserver)


def encode(message: ToMaster | ToPeer | ToObserver | Between) -> bytes:
    """The body of a frame. Bounds are not checked here: the code that builds a message keeps to them, or the receiver
    closes the connection. A text that UTF-8 cannot hold is a `UnicodeEncodeError`: a fault of ours, not of the wire."""
    return _encoder.encode(message)


def decode_to_master(body: bytes) -> ToMaster:
    """A message that a peer sent to the master."""
    return _decode(_to_master, body)


def decode_to_peer(body: bytes) -> ToPeer:
    """A message that the master sent to a peer."""
    return _decode(_to_peer, body)


def decode_between(body: bytes) -> Between:
    """A message that opens a lane between two peers."""
    return _decode(_between, body)


def decode_to_observer(body: bytes) -> ToObserver:
    """A message that the master sent to an observer."""
    return _decode(_to_observer, body)


def _decode(reader: _Reader[_Message], body: bytes) -> _Message:
    try:
        return reader.read(body)
    except ValidationError as error:
        raise WireError(_without_payload(str(error))) from None
    except DecodeError as error:
        raise WireError(f"no message: {error}"[:_ERROR_TEXT_MAX]) from None
    except UnicodeDecodeError:
        raise WireError("no message: a text that is not UTF-8") from None
    except RecursionError:
        raise WireError("no message: values nested too deeply") from None


def _without_payload(text: str) -> str:
    """What a validation error says without what the sender wrote: that may be long or made to spoil a terminal."""
    what, _, where = text.rpartition(" - at ")
    if not where or not what:
        what, where = text, "the message"
    if what.startswith("Invalid"):
        # The only texts of msgspec that quote the value.
        what = "a value that is none of those allowed"
    return f"not a message of this direction or out of its bounds: {what} at {where}"[:_ERROR_TEXT_MAX]
