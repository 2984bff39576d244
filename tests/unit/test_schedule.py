"""How collectives are cut up for their lanes."""

from hypothesis import given
from hypothesis import strategies as st

from pccl.codec import NONE
from pccl.core.fields import SEGMENT_BYTES_MAX, CollectiveSpec
from pccl.core.rules.schedule import (
    NEAR_S,
    SEGMENT_BYTES_BEST,
    SEGMENT_BYTES_FAR,
    STRIPE_BYTES_MIN,
    lane_share,
    segment_bytes,
)
from pccl.types import DataType, ReduceOp

FAR_S = 0.08


def spec(nbytes: int, codec: str = NONE) -> CollectiveSpec:
    return CollectiveSpec(nbytes // 4, DataType.FLOAT, ReduceOp.SUM, codec)


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
    for round_trip_s, longest in ((NEAR_S, SEGMENT_BYTES_BEST), (FAR_S, SEGMENT_BYTES_FAR)):
        length = segment_bytes(spec(nbytes), size, lanes, round_trip_s)
        assert length % 8 == 0
        assert 8 <= length <= min(longest, SEGMENT_BYTES_MAX)


def test_segments_of_codes_are_as_long_on_a_lane_as_others() -> None:
    assert segment_bytes(spec(1 << 30, "int8.256"), 2, 1, NEAR_S) == 4 * SEGMENT_BYTES_BEST
    assert segment_bytes(spec(1 << 30, "int4.256.stochastic.7"), 2, 1, NEAR_S) == 8 * SEGMENT_BYTES_BEST
    assert segment_bytes(spec(1 << 20, "int8.256"), 2, 1, NEAR_S) == segment_bytes(spec(1 << 20), 2, 1, NEAR_S), (
        "still a few to a chunk"
    )


def test_a_codec_that_the_master_does_not_know_is_none_of_its_business() -> None:
    for codec in ("", "int9.256", "int8", "int8.x", "int8.256.stochastic." + "9" * 5000, "\0"):
        assert segment_bytes(spec(1 << 30, codec), 2, 1, NEAR_S) == SEGMENT_BYTES_BEST
