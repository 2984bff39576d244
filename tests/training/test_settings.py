"""What settings come to: defaults by mode, which of them all peers must share, and which are each peer's own."""

import pytest
from msgspec import structs

from pccl.training.settings import Options, ParallelOptions, Settings

OWN = {"pace", "join", "warmup_steps", "notice_s", "patience_s", "min_peers", "accumulate"}
OTHERS = {
    "sync_every": 99,
    "outer_lr": 0.3,
    "outer_momentum": 0.3,
    "quantize": "int8",
    "feedback": True,
    "weigh": "steps",
    "overlap": 3,
    "mix": 0.3,
    "eager": True,
    "fragments": 3,
    "buffers": "local",
    "clip": 3.0,
    "bucket_bytes": 3,
    "global_batch": 3,
    "min_peers": 3,
    "pace": "speed",
    "join": "fresh",
    "warmup_steps": 3,
    "notice_s": 3.0,
    "patience_s": 3.0,
    "accumulate": 3,
}
"""Another value than the default, for each."""


def test_all_settings_that_change_what_a_round_is_are_compared():
    """Those that differ are refused by name: `test_settings_that_differ_are_refused_with_both_values`."""
    assert (
        set(OTHERS) == set(Settings.__struct_fields__) == {*Options.__annotations__, *ParallelOptions.__annotations__}
    )
    told = {name: structs.replace(Settings(), **{name: value}).shared for name, value in OTHERS.items()}
    differ = {
        name: {key for key, value in shared.items() if value != Settings().shared[key]} for name, shared in told.items()
    }
    assert differ == {name: set() if name in OWN else {name} for name in OTHERS}


@pytest.mark.parametrize(
    ("options", "peers", "rates"),
    [
        ({}, 3, (0.7, 0.9)),
        ({"overlap": 5}, 3, (0.7, 0.9)),
        ({"overlap": "auto"}, 3, (0.7, 0.9)),
        ({"overlap": "round"}, 3, (0.7, 0.0)),
        ({"overlap": "round", "eager": True}, 4, (0.4, 0.9)),
        ({"overlap": "round", "eager": True}, 5, (0.2, 0.9)),
        ({"fragments": 4}, 3, (0.4, 0.9)),
        ({"fragments": 4, "outer_lr": 0.5}, 3, (0.5, 0.9)),
        ({"overlap": "round", "outer_momentum": 0.1}, 3, (0.7, 0.1)),
        ({"outer_lr": 0.0}, 3, (0.0, 0.9)),
    ],
    ids=str,
)
def test_rates_are_those_of_the_mode_or_as_passed(options, peers, rates):
    assert Settings.of("DiLoCo", options).rates(peers) == rates


@pytest.mark.parametrize(
    ("options", "mix"),
    [
        ({}, 0.0),
        ({"overlap": 5}, 0.0),
        ({"fragments": 4}, 0.0),
        ({"fragments": 4, "overlap": 5}, 0.5),
        ({"fragments": 4, "overlap": 5, "mix": 0.0}, 0.0),
        ({"fragments": 4, "overlap": 5, "mix": None}, 0.5),
    ],
    ids=str,
)
def test_half_of_the_model_is_kept_where_fragments_come_late(options, mix):
    assert Settings.of("DiLoCo", options).mix == mix


@pytest.mark.parametrize(
    ("codec", "feedback", "carried"),
    [
        (None, None, False),
        ("int8", None, False),
        ("int8", True, True),
        ("int4", None, True),
        ("e3m0", None, True),
        ("int4", False, False),
    ],
)
def test_what_four_bits_lose_is_carried_on(codec, feedback, carried):
    assert Settings.of("DiLoCo", {"quantize": codec, "feedback": feedback}).with_feedback is carried
