"""How collectives are cut up for their lanes."""

from hypothesis import given
from hypothesis import strategies as st

from pccl.core.messages import SEGMENT_BYTES_MAX, CollectiveSpec
from pccl.core.schedule import NEAR_S, SEGMENT_BYTES_BEST, STRIPE_BYTES_MIN, lane_share, segment_bytes
from pccl.types import DataType, ReduceOp

FAR_S = 0.08


def spec(nbytes: int) -> CollectiveSpec:
    return CollectiveSpec(nbytes // 4, DataType.FLOAT, ReduceOp.SUM)


def test_a_large_tensor_gets_every_lane_of_a_long_link_and_one_of_a_short_one() -> None:
    assert lane_share(8, 1, spec(1 << 30), FAR_S) == 8
    assert lane_share(8, 1, spec(1 << 30), NEAR_S) == 1


def test_a_small_tensor_leaves_lanes_to_others() -> None:
    assert lane_share(8, 1, spec(STRIPE_BYTES_MIN), FAR_S) == 1
    assert lane_share(8, 1, spec(3 * STRIPE_BYTES_MIN), FAR_S) == 3
    assert lane_share(8, 1, spec(0), FAR_S) == 1


def test_lanes_are_shared_out_among_those_that_wait() -> None:
    assert lane_share(8, 4, spec(1 << 30), FAR_S) == 2
    assert lane_share(2, 64, spec(1 << 30), FAR_S) == 1


@given(st.integers(0, 1 << 45), st.integers(2, 4096), st.integers(1, 1024))
def test_segments_hold_whole_elements_and_fit_the_data_plane(nbytes: int, size: int, lanes: int) -> None:
    length = segment_bytes(spec(nbytes), size, lanes)
    assert length % 8 == 0
    assert 8 <= length <= min(SEGMENT_BYTES_BEST, SEGMENT_BYTES_MAX)
