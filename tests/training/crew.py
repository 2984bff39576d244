"""Peers of a run as threads of this process, each with a model of its own."""

import threading

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
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive(), "a peer hangs"
        for each in told:
            if isinstance(each, BaseException):
                raise each
        return told

    def close(self):
        self.master.interrupt()
