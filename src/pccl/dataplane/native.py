"""The native data plane, and the only importer of `_native`.

Owns the translation between effects and native attempts, and the descriptor through which these tell the event loop
that they have ended. Must not know peers, the master, or why anything starts. Where the native part is missing,
importing this module fails: a slower replacement is chosen by name, never in silence.
"""

import asyncio
import ctypes
import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pccl import _native
from pccl.codec import NONE, Codec
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.connection import Bytes, Connection, Rest, leave, rest_of
from pccl.dataplane.offers import CannotBegin, Offers, Traffic
from pccl.dataplane.patience import BYTES_MIN_S
from pccl.dataplane.ring.segments import result_digest
from pccl.dataplane.tensors.buffers import Buffers, Tensor
from pccl.errors import UsageError

Lanes = Sequence[Connection]

REKEY_BYTES = 64 << 30
"""A sender's key is replaced after this many bytes of full records: AES-GCM allows 2^24.5 of these, 388 GB, and OpenSSL
does not do it by itself."""


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """How the native part was built, and what the machine it runs on can do."""

    compiler: str
    cxx_standard: int
    """The value of `__cplusplus`: 202002 is C++20."""
    instruction_sets: tuple[str, ...]
    """Found at run time; of those that kernels choose between."""
    kernels: str
    """The variant of the kernels that was chosen for this machine."""

    def __str__(self) -> str:
        sets = ", ".join(self.instruction_sets) or "none known"
        return f"{self.compiler}, C++ {self.cxx_standard}, instruction sets: {sets}, kernels: {self.kernels}"


def build_info() -> BuildInfo:
    """What to put first in a report about speed or about a crash."""
    facts = _native.build_info()
    return BuildInfo(facts["compiler"], facts["cxx_standard"], tuple(facts["instruction_sets"]), facts["kernels"])


class NativeLane:
    """A lane under TLS, of a native plane; see `connection.Secured`."""

    def __init__(self, sock: socket.socket, channel: _native.Channel) -> None:
        self.channel = channel
        self._sock = sock
        self.fileno, self.shutdown, self.close = sock.fileno, sock.shutdown, sock.close

    @property
    def torn(self) -> bool:
        """See `Secured`."""
        return self.channel.torn

    def hello(self) -> None:
        """See `Secured`."""
        self._shaken(self.channel.hello())

    def handshake(self) -> int:
        """See `Secured`."""
        return self._shaken(self.channel.handshake())

    def certificate(self) -> bytes:
        """See `Secured`."""
        return self.channel.certificate()

    def send(self, data: Bytes, /) -> int:
        """See `Connection`."""
        return self._moved(self.channel.send(data))

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """See `Connection`."""
        if flags & socket.MSG_PEEK:
            return bytes(self._received(self.channel.peek()))
        into = bytearray(count)
        return bytes(memoryview(into)[: self._received(self.channel.receive(into))])

    def recv_into(self, into: memoryview, /) -> int:
        """See `Connection`."""
        return self._received(self.channel.receive(into))

    def _received(self, moved: int) -> int:
        return 0 if moved == _BROKEN and self.channel.ended else self._moved(moved)

    def _moved(self, moved: int) -> int:
        if moved == _NOTHING_NOW:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if moved == _BROKEN:
            raise ConnectionError(errno.ECONNABORTED, self.channel.cause)
        return moved

    def _shaken(self, wants: int) -> int:
        if wants == _BROKEN:
            raise ConnectionError(errno.ECONNABORTED, self.channel.cause)
        return wants


_NOTHING_NOW, _BROKEN = -1, -2
"""What native calls return instead of a number of bytes, or of an event to wait for."""


class NativeTls:
    """Secures the lanes of a peer on the native plane; see `connection.Tls`."""

    def __init__(
        self, certificate: bytes, key: bytes, libraries: Sequence[str], rekey_bytes: int = REKEY_BYTES
    ) -> None:
        """`certificate` and `key` in DER. `libraries`: where OpenSSL may be found, the best first. Raises
        `UsageError`."""
        self._make(libraries, lambda: _native.Tls(certificate, key, rekey_bytes))

    def _make(self, libraries: Sequence[str], make: Callable[[], _native.Tls]) -> None:
        try:
            self.version = _native.load_openssl(list(libraries))
            """Of OpenSSL, in its words."""
            self._native = make()
        except RuntimeError as error:
            raise UsageError(
                f"TLS on lanes needs OpenSSL 1.1.1 or later at run time, and none serves ({error}); install libssl, "
                "name its file in PCCL_LIBSSL, or use data_plane='reference'"
            ) from error

    def wrap(self, sock: socket.socket, dials: bool, first: bytes) -> NativeLane:
        """See `Tls`."""
        try:
            return NativeLane(sock, self._native.wrap(sock.fileno(), dials, first))
        except RuntimeError as error:
            raise OSError(errno.ENOMEM, str(error)) from error


class CertifiedTls(NativeTls):
    """The same with certificates of an own CA: both ends show theirs."""

    def __init__(self, certificate: str, key: str, ca: str, libraries: Sequence[str]) -> None:
        """Names of files in PEM. Raises `UsageError`."""
        self._make(libraries, lambda: _native.Tls(certificate, key, ca, REKEY_BYTES))


def channel_of(lane: Connection) -> _native.Channel:
    """What the native part is given of a lane."""
    return lane.channel if isinstance(lane, NativeLane) else _native.Channel(lane.fileno())


def lent(lanes: Lanes) -> list[_native.Channel]:
    """The same of lanes that are read from: with what is left on them."""
    return [channel_of(lane).after(*rest_of(lane)) for lane in lanes]


def take_back(lanes: Lanes, report: _native.Report) -> None:
    """What an attempt leaves on the lanes that it has read from."""
    rests = {stripe: Rest(skip, head) for stripe, skip, head in report.rests}
    for stripe, lane in enumerate(lanes):
        leave(lane, rests.get(stripe, Rest()))


outer_step = _native.outer_step
"""Of training: addresses of float32, their number, and the rates; see `native/outer.hpp`."""


class NativeAttempt:
    """One native attempt, and where it reports its end."""

    def __init__(
        self,
        effect: StartAttempt,
        native: _native.Attempt,
        ended: Callable[[AttemptEnded], None],
        lanes: tuple[Lanes, Lanes],
    ) -> None:
        self.native = native
        self._effect = effect
        self._ended = ended
        self._lanes = lanes
        """To the next peer and from the previous one. Kept: were the sockets collected while it is stopping, their
        numbers could be used for something else."""

    @property
    def commits_at_once(self) -> bool:
        """What travels as codes has all of its result to decode."""
        return self._effect.spec.codec == NONE

    def commit(self) -> None:
        """Complete the result."""
        self.native.commit()

    def restore(self) -> None:
        """Put the input back."""
        self.native.restore()

    @property
    def traffic(self) -> Traffic:
        """What it moved."""
        report = self.native.report
        return Traffic(report.sent_bytes, report.received_bytes, report.repeated_bytes)

    def tell(self) -> None:
        """Report the end."""
        report, effect = self.native.report, self._effect
        take_back(self._lanes[1], report)
        broken = {effect.to_next[stripe] for stripe in report.broken_next}
        broken |= {effect.from_prev[stripe] for stripe in report.broken_prev}
        digest = b"" if report.cause else result_digest(report.checks)
        self._ended(AttemptEnded(effect.tag, effect.attempt, report.cause, tuple(sorted(broken)), digest))


class NativePlane:
    """Runs collectives in native threads. All methods but `moved_bytes`, and those of `offers`, are
    called in the event loop's thread."""

    def __init__(self, stall_s: float) -> None:
        self.offers = Offers()
        self.stall_s = stall_s
        self._running: dict[int, NativeAttempt] = {}
        self._notifier: _native.Notifier | None = None

    def start(
        self,
        effect: StartAttempt,
        to_next: Lanes,
        from_prev: Lanes,
        ended: Callable[[AttemptEnded], None],
    ) -> None:
        """Begin an attempt; see `DataPlane`."""
        try:
            buffers = self.offers.take(effect)
        except CannotBegin as failure:
            ended(AttemptEnded(effect.tag, effect.attempt, str(failure)))
            return
        lanes = [channel_of(lane) for lane in to_next], lent(from_prev)
        memory, feedback = (buffers.send.address, buffers.output.address), _feedback(buffers)
        try:
            native = _native.start(plan(effect, self.stall_s), *memory, *lanes, self._open_notifier(), *feedback)
        except (RuntimeError, MemoryError) as error:  # no descriptor, thread or memory left; there may be some again
            ended(AttemptEnded(effect.tag, effect.attempt, f"it cannot begin: {error}"))
            return
        this = self._running[effect.attempt] = NativeAttempt(effect, native, ended, (to_next, from_prev))
        self.offers.began(effect.tag, this)

    def abort(self, tag: int, attempt: int) -> None:
        """Stop an attempt; see `DataPlane`."""
        if attempt in self._running:
            self._running[attempt].native.abort()

    def moved_bytes(self) -> list[int]:
        """See `DataPlane`."""
        return [running.native.moved_bytes for running in list(self._running.values())]

    def check(self, contribution: bytes) -> int:
        """See `DataPlane`."""
        return _native.check_bytes(contribution)

    def contribution(self, spec: CollectiveSpec, buffers: Buffers, draw: int) -> bytes:
        """See `DataPlane`."""
        if spec.codec == NONE:
            return ctypes.string_at(buffers.send.address, buffers.send.nbytes)
        return _native.encode_contribution(parameters(spec), buffers.send.address, draw, *_feedback(buffers))

    def reduce_all(self, spec: CollectiveSpec, contributions: list[bytes], out: Tensor) -> None:
        """See `DataPlane`."""
        if spec.codec == NONE:
            _native.reduce_all(spec.dtype, spec.op, out.address, contributions)
        else:
            _native.reduce_all_coded(parameters(spec), out.address, contributions)

    def close(self) -> None:
        """The loop ends. Attempts that are still stopping notify no loop, and keep what they need."""
        for running in self._running.values():
            running.native.abort()
        if self._notifier is not None:
            asyncio.get_running_loop().remove_reader(self._notifier.fd)
            self._notifier = None

    def _open_notifier(self) -> _native.Notifier:
        if self._notifier is None:
            self._notifier = _native.Notifier()
            asyncio.get_running_loop().add_reader(self._notifier.fd, self._collect, self._notifier)
        return self._notifier

    def _collect(self, notifier: _native.Notifier) -> None:
        notifier.clear()
        for attempt in [attempt for attempt, running in self._running.items() if running.native.ended]:
            self._running.pop(attempt).tell()


def plan(effect: StartAttempt, stall_s: float) -> _native.Plan:
    """What the native part is told of an attempt."""
    made = parameters(effect.spec)
    made.tag, made.attempt = effect.tag, effect.attempt
    made.rank, made.size, made.root = effect.rank, effect.size, effect.root_rank
    made.segment_bytes, made.strands = effect.segment_bytes, effect.strands
    made.stall_s, made.bytes_min_s = stall_s, BYTES_MIN_S
    return made


def parameters(spec: CollectiveSpec) -> _native.Plan:
    """As much of a plan as all peers know before a collective starts."""
    made = _native.Plan()
    made.kind, made.count, made.dtype, made.op = spec.kind, spec.count, spec.dtype, spec.op
    codec = Codec.parse(spec.codec)
    if codec is not None:
        made.codec, made.block = codec.number, codec.block
        made.stochastic, made.seed = codec.stochastic, codec.seed
    return made


def _feedback(buffers: Buffers) -> tuple[int, int]:
    """Where what is carried and what is lost lie; nowhere without error feedback."""
    feedback = buffers.feedback
    return (0, 0) if feedback is None else (feedback.carried.address, feedback.lost.address)
