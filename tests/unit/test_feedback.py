"""What is kept, for which tag, and what is refused before anything moves."""

import numpy as np
import pytest

from pccl import Codec, ErrorFeedback
from pccl.api.calls import options_of
from pccl.api.transaction import Order, Part, Transaction
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.offers import Offers
from pccl.dataplane.tensors.buffers import Feedback, buffers
from pccl.errors import UsageError
from pccl.types import DataType, ReduceOp, part_tag


def test_a_call_that_came_to_nothing_does_not_decide_the_length():
    feedback = ErrorFeedback("int8")
    feedback.lend(7, 101, DataType.FLOAT)
    assert feedback.lend(7, 100, DataType.FLOAT).carried.count == 100
    assert feedback.state_dict()["residuals"] == {}


def test_reset_forgets_all_parts_of_a_call():
    feedback = ErrorFeedback("int8")
    for part in range(2):
        feedback.lend(part_tag(3, part), 10, DataType.FLOAT)
        feedback.keep(part_tag(3, part))
    with pytest.raises(UsageError, match=r"tag 3 \(part 2\).*reset that tag first"):
        feedback.lend(part_tag(3, 1), 11, DataType.FLOAT)
    feedback.lend(4, 10, DataType.FLOAT)
    feedback.keep(4)
    feedback.reset(3)
    assert list(feedback.state_dict()["residuals"]) == [4]


def test_residuals_are_lent_only_to_whom_the_tag_belongs():
    """Another call with the same tag, built earlier, would carry what the first used up, and lose what that lost."""
    offers, lent = Offers(), []
    memory = [np.zeros(4, np.float32) for _ in range(2)]
    spec = CollectiveSpec(4, DataType.FLOAT, ReduceOp.SUM, codec="int8.256")
    feedback = ErrorFeedback("int8")

    def lend() -> Feedback:
        lent.append(feedback.lend(1, 4, DataType.FLOAT))
        return lent[-1]

    class Silent:
        def __init__(self) -> None:
            self.offers = offers

        def submit(self, request, answered):
            pass

    first, second = (
        Transaction(Order("all_reduce", 1, [Part(1, spec, buffers(each, each), lend)]), Silent()) for each in memory
    )
    first.begin()
    assert offers.find(1).feedback is lent[0]
    with pytest.raises(UsageError, match="tag 1 is in flight"):
        second.begin()
    assert len(lent) == 1


@pytest.mark.parametrize("quantize", [5, ["int8"], Codec, "nope", b"int8"])
def test_what_names_no_codec_is_a_usage_error(quantize):
    with pytest.raises(UsageError, match="a codec must be one of"):
        options_of("all_reduce", quantize=quantize)
    with pytest.raises(UsageError, match="a codec must be one of"):
        ErrorFeedback(quantize)


@pytest.mark.parametrize("choices", [{"seed": 1.5}, {"seed": "1"}, {"block": 256.0}, {"seed": None}])
def test_what_cannot_be_told_to_others_is_refused(choices):
    with pytest.raises(ValueError, match="must be an integer, got"):
        Codec("int8", **choices)


def test_integers_of_any_kind_are_fine():
    codec = Codec("int8", np.int64(512), True, np.uint8(7))
    assert Codec.parse(str(codec)) == codec == Codec("int8", 512, True, 7)
    assert Codec.parse(str(Codec("int8", stochastic=True, seed=True))) == Codec("int8", stochastic=True, seed=1)


@pytest.mark.parametrize("residuals", [None, {"x": []}, {1: [1.0]}, {1: np.zeros(2, np.int32)}])
def test_a_state_that_is_none_is_refused(residuals):
    with pytest.raises(UsageError, match="error feedback"):
        ErrorFeedback("int8").load_state_dict({"codec": "int8.256", "residuals": residuals})
    with pytest.raises(UsageError, match="must be what state_dict returned"):
        ErrorFeedback("int8").load_state_dict({"codec": "int8.256"})


def test_what_was_committed_and_is_not_used_goes_into_the_next_one():
    feedback = ErrorFeedback("int8")
    first = feedback.lend(3, 4, DataType.FLOAT)
    feedback.keep(3)
    second = feedback.lend(3, 4, DataType.FLOAT)
    assert second.carried is first.lost
    feedback.take_back(3)
    again = feedback.lend(3, 4, DataType.FLOAT)
    assert (again.carried, again.lost) == (first.carried, first.lost)
