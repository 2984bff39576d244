"""What `bench/wan.py` says of a cell: an end that tells of failures, and rates that a ring can reach."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def wan(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import wan

    monkeypatch.setattr(wan.os, "geteuid", lambda: 0)
    yield wan
    for name in [name for name, module in sys.modules.items() if str(BENCH) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_a_cell_that_fails_is_told_by_the_end_of_the_program(wan, monkeypatch, capsys):
    def run(cell, arguments, lines):
        lines.append({"cell": cell.name})
        if cell.wan.loss:
            raise wan.RivalFailed("aborted")

    monkeypatch.setattr(wan, "run_case", run)
    monkeypatch.setattr(sys, "argv", ["wan.py", "--cases", "2x100", "2x100-80ms-loss1", "2x20"])
    with pytest.raises(SystemExit, match=r"1 of 3 cells failed:\n2x100-80ms-loss1: aborted"):
        wan.main()
    assert capsys.readouterr().out.count("2x") == 3, "the others are measured"
    monkeypatch.setattr(sys, "argv", ["wan.py", "--cases", "2x100"])
    wan.main()


def test_a_ring_is_as_fast_as_its_slowest_host(wan):
    cell = wan.cells(["2x100:20-80ms-cubic"])[0]

    rival = SimpleNamespace(name="ours", facts={"lanes": 4})
    line = wan.line(cell, rival, 2_500_000, wan.Turns(1.0), {4: 20.0})
    assert (line["share_of_rate"], line["share_of_limit"]) == (1.0, 1.0)


@pytest.mark.parametrize(("pairs", "mbit"), [(None, 20.0), ([(0, 1), (1, 0)], 60.0)])
def test_of_a_ring_the_slowest_stream_counts(wan, monkeypatch, pairs, mbit):
    """Of those that send to one place their mean."""
    import iperf

    def send(stack, lab, pair, *given):
        report = {"end": {"sum_received": {"bits_per_second": (100e6, 20e6)[pair[0]]}}}
        return SimpleNamespace(communicate=lambda: (json.dumps(report).encode(), None))

    lab = SimpleNamespace(wan=wan.cells(["2x100:20-80ms-cubic"])[0].wan)
    monkeypatch.setattr(iperf.shutil, "which", lambda name: name)
    monkeypatch.setattr(iperf, "_serve", lambda *given: None)
    monkeypatch.setattr(iperf, "_send", send)
    assert iperf.best(lab, [4], 10, pairs) == {4: mbit}


def test_the_number_of_lanes_is_that_of_the_last_all_reduce(wan, monkeypatch):
    """Of the sockets some may just be made again."""
    from rivals import ours

    lanes = iter((16, 0))
    communicator = SimpleNamespace(
        all_reduce=lambda values, **given: SimpleNamespace(lanes=next(lanes)),
        metrics=lambda: {"pccl_repeated_bytes_total": 0},
    )
    monkeypatch.setattr(ours, "Communicator", lambda *given, **more: communicator)
    peer = ours.Ours({"rank": 0, "size": 2, "master": "127.0.0.1:1", "lanes": 0, "listen": "127.0.0.1"})
    for _ in range(2):
        peer.all_reduce(np.ones(1, np.float32))
        assert peer.look()["lanes"] == 16, "what is short needs none"
