"""Peers of a run as threads of this process, each with a model of its own."""

import threading
import time

from pccl import MasterNode
from tests.patience import HANG_S


class Crew:
    """A master and some peers."""

    def __init__(self):
        self.master = MasterNode("127.0.0.1:0")
        self.master.run()

    @property
    def address(self):
        return f"127.0.0.1:{self.master.port}"

    def together(self, count, act):
        """Let `act(number)` run in so many threads; what each returned. The first error is raised."""
        told = [None] * count

        def begin(number):
            try:
                told[number] = act(number)
            except BaseException as error:
                told[number] = error

        threads = [threading.Thread(target=begin, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + HANG_S
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            _raise_first(told)
            threads[-1].join(0.05)
            threads[0].join(0.05)
        _raise_first(told)
        assert not any(thread.is_alive() for thread in threads), "a peer hangs"
        return told

    def close(self):
        self.master.interrupt()


def _raise_first(told):
    for each in told:
        if isinstance(each, BaseException):
            raise each
