"""A holder that speaks the format of docs/shared-state.md, written apart from ours, and misbehaves on cue."""

import contextlib
import socket
import struct
import threading

import numpy as np

from tests.patience import HANG_S

MANIFEST, CHUNK = 1, 2
CHUNK_BYTES = 4 << 20
HEADER = struct.Struct("<8sIIII")
SEGMENT_BYTES = 40


def header(kind, entry=0, number=0, length=0):
    return HEADER.pack(b"PCCLSTAT", kind, entry, number, length)


class Puppet:
    """Serves one lane in a thread. `act(kind, answer)` may replace an answer; None means that there is none to come."""

    def __init__(self, lane, contents, manifest, act=lambda kind, answer: answer, budget=None):
        self.lane = lane
        self.said_bye = False
        self.served = 0
        """Bytes of chunks that left whole."""
        self.wasted = 0
        """Bytes of a chunk that did not."""
        self._contents, self._manifest, self._act, self._budget = contents, manifest, act, budget
        lane.setblocking(True)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def join(self):
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()

    def _serve(self):
        with contextlib.suppress(OSError):  # the other side closed the lane
            while self._answer_one():
                pass

    def _answer_one(self):
        data = self.lane.recv(HEADER.size, socket.MSG_WAITALL)
        if len(data) < HEADER.size:
            return False
        magic, kind, entry, number, length = HEADER.unpack(data)
        if magic == b"PCCL BYE":
            rest = self.lane.recv(SEGMENT_BYTES + 1 - HEADER.size, socket.MSG_WAITALL)
            self.said_bye = len(rest) == SEGMENT_BYTES + 1 - HEADER.size
            return False
        assert magic == b"PCCLSTAT"
        if kind == MANIFEST:
            payload = self._manifest.encoded
            answer = header(MANIFEST, 0, 0, len(payload)) + payload
        else:
            content = self._contents[entry].array.reshape(-1).view(np.uint8)
            payload = content[number * CHUNK_BYTES :][:length].tobytes()
            assert len(payload) == length
            answer = data + payload
        answer = self._act(kind, answer)
        if answer is None:
            return True
        if self._budget is not None and kind == CHUNK:
            return self._within_budget(answer)
        self.lane.sendall(answer)
        self.served += len(payload) * (kind == CHUNK)
        return True

    def _within_budget(self, answer):
        """Die in the midst of an answer: everything sent before still arrives."""
        allowed = min(len(answer), self._budget)
        self.lane.sendall(answer[:allowed])
        self._budget -= allowed
        if allowed == len(answer):
            self.served += allowed - HEADER.size
            return True
        self.wasted = max(0, allowed - HEADER.size)
        self.lane.shutdown(socket.SHUT_WR)
        return False
