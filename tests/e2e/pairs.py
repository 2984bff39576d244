"""Calls that two connected peers of this process make at once."""

import array
import threading

from pccl import PCCLError
from tests.patience import HANG_S

WAIT_S = HANG_S


def floats(*values):
    return array.array("f", values)


def both(pair, call):
    """The same call on both, at once; what each returned or raised."""
    told = [None, None]

    def make(number):
        try:
            told[number] = call(pair[number])
        except PCCLError as error:
            told[number] = error

    threads = [threading.Thread(target=make, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return told
