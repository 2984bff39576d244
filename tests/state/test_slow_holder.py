"""A holder that sends something now and then."""

import contextlib
import itertools
import threading

from pccl.dataplane.state.transfer import HEADER_BYTES
from tests.patience import allow
from tests.state.puppet import MANIFEST, header
from tests.state.rig import blank, goal, holding, random_content


def test_a_holder_that_sends_a_byte_now_and_then_is_dropped(rig):
    """Any byte was progress, and all peers of a group wait for the pull of each."""
    state = [random_content("a", 40_000, 1)]
    mine, held, made = [blank(content) for content in state], holding(state), rig(1, 1)
    lane = made.far[0][0]
    lane.setblocking(True)

    over = threading.Event()

    def trickle():
        with contextlib.suppress(OSError):
            lane.recv(HEADER_BYTES)
            lane.sendall(header(MANIFEST, length=len(held.manifest.encoded)))
            for byte in itertools.cycle(held.manifest.encoded):
                lane.sendall(bytes([byte]))
                over.wait(0.1)

    threading.Thread(target=trickle, daemon=True).start()
    _, end = made.pull(holding(mine), goal(held), stall_s=0.4)
    report = end.wait(allow(20))
    over.set()
    assert report.dropped == ((0, "too few bytes moved for 0.4 s"),)
