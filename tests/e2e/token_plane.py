"""A data plane that moves no tensor: a token goes once around the ring on every lane, in a thread.

Enough to see real lanes being lent, used, aborted and given back. A run of `HOLD` elements passes nothing on until it
is aborted, so that a test can do something in the middle of it.
"""

import select
import struct
import threading

from pccl.core.effects.peer_events import AttemptEnded
from pccl.dataplane.connection import receive_into, rest_of

HOLD = 999_999
LONG = 100_000
"""Elements that do not fit into a parcel: what is shorter would not use a ring."""
TOKEN = struct.Struct("<QQ")
LOOK_S = 0.02
"""How soon an abort is noticed."""


class Broken(Exception):
    def __init__(self, cause, lane):
        super().__init__(cause)
        self.lane = lane


class Aborted(Exception):
    pass


class TokenPlane:
    def __init__(self, started=lambda run: None):
        self._started = started
        self._aborts = {}
        self.stall_s = 60.0

    def check(self, contribution):
        return 0

    def start(self, run, to_next, from_prev, ended):
        abort = self._aborts[run.tag, run.attempt] = threading.Event()
        threading.Thread(target=self._run, args=(run, to_next, from_prev, ended, abort), daemon=True).start()

    def abort(self, tag, attempt):
        if (tag, attempt) in self._aborts:
            self._aborts[tag, attempt].set()

    def close(self):
        for abort in list(self._aborts.values()):
            abort.set()

    def _run(self, run, to_next, from_prev, ended, abort):
        cause, broken = "", ()
        self._started(run)
        try:
            if run.spec.count == HOLD:
                abort.wait()
                raise Aborted
            next_lanes = list(zip(run.to_next, to_next, strict=True))
            prev_lanes = list(zip(run.from_prev, from_prev, strict=True))
            for (next_key, next_lane), (prev_key, prev_lane) in zip(next_lanes, prev_lanes, strict=True):
                self._pass_on(run, (next_key, next_lane), (prev_key, prev_lane), abort)
        except Aborted:
            cause = "aborted"
        except Broken as error:
            cause, broken = str(error), (error.lane,)
        del self._aborts[run.tag, run.attempt]
        ended(AttemptEnded(run.tag, run.attempt, cause, broken))

    def _pass_on(self, run, to_next, from_prev, abort):
        token = TOKEN.pack(run.tag, run.attempt)
        if run.rank == 0:
            self._send(*to_next, token)
        self._receive(*from_prev, token, abort)
        if run.rank != 0:
            self._send(*to_next, token)

    def _send(self, key, lane, token):
        try:
            if lane.send(token) != len(token):
                raise Broken("sixteen bytes did not fit", key)
        except OSError as error:
            raise Broken(f"send: {error}", key) from None

    def _receive(self, key, lane, token, abort):
        """Wait for our token; those of attempts that were aborted before are drained."""
        while True:
            data = self._read(key, lane, len(token), abort)
            if data == token:
                return
            if TOKEN.unpack(data)[1] > TOKEN.unpack(token)[1]:
                raise Broken(f"a token of a later attempt: {TOKEN.unpack(data)} instead of {TOKEN.unpack(token)}", key)

    def _read(self, key, lane, count, abort):
        data = b""
        while len(data) < count:
            if abort.is_set():
                if data:
                    raise Broken("aborted inside a token", key)
                raise Aborted
            # What came while the lane was idle may have been read already, to see of which attempt it is.
            if not rest_of(lane).head and not select.select([lane], [], [], LOOK_S)[0]:
                continue
            portion = bytearray(count - len(data))
            try:
                del portion[receive_into(lane, memoryview(portion)) :]
            except OSError as error:
                raise Broken(f"receive: {error}", key) from None
            if not portion:
                raise Broken("the other end closed the lane", key)
            data += portion
        return data
