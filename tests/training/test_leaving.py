"""A loop that ends in the middle of a round: the peer leaves at once, whoever else it would have waited for."""

import threading

import pytest

from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_rounds import make

MODES = {
    "overlapped": {"overlap": 1},
    "streaming": {"fragments": 3, "overlap": 1},
    "delayed": {"overlap": "round"},
}


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_the_loop_is_raised_though_a_reduction_is_under_way(crew, mode):
    """The other peer, which computes on, would be waited for as long as that takes."""
    made = [make(crew, number, min_peers=2, **MODES[mode]) for number in range(2)]
    inside, raised = threading.Event(), threading.Event()

    def fail(run, model, optimizer):
        with run:
            inside.wait(HANG_S)
            while not run._flights:
                oracle.inner_step(model, optimizer, 0, run.step)
            raise ZeroDivisionError

    def act(number):
        if not number:
            with pytest.raises(ZeroDivisionError):
                fail(*made[0])
            raised.set()
            return
        with made[1][0] as run:
            inside.set()
            assert raised.wait(HANG_S)
            run.leave()

    crew.together(2, act)
