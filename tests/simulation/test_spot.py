"""Spot instances: nobody is lost but those who are taken away, and the arithmetic of the run they are compared with."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.simulation.restarts import Restarts
from tests.simulation.spot import HOUR_S, Spot, SpotTheatre, curves, table
from tests.simulation.spot_plot import Curve, draw_plot

SMALL = Spot(peers=8, hours=1.0, losses_per_hour=4)


@pytest.fixture(scope="module")
def played():
    theatre = SpotTheatre(SMALL)
    theatre.play()
    return theatre


def test_those_who_are_not_taken_away_stay_and_go_on(played):
    ends = [host.crashed for host in played.hosts_by_name.values()]
    assert played.taken == ends.count(True) == 4
    assert len(ends) == SMALL.peers + 4
    assert played.lost == 0
    assert played.sizes[-1][1] == SMALL.peers
    # Each newcomer costs its pull, each loss at most an all-reduce; the control plane a second for each step.
    lost_s = 4 * (SMALL.pull_s + SMALL.reduce_s) + 2 * SMALL.step_s
    assert len(played.steps) >= (SMALL.seconds - lost_s) / (SMALL.step_s + 1.5)


def test_the_table_and_the_plot_tell_it(played):
    restarts = Restarts.play(SMALL.losses(), SMALL.seconds, SMALL.step_s, (600.0, 300.0))
    assert f"| 0 | {len(played.steps)} |" in "\n".join(table(SMALL, played, {10.0: restarts}))
    sizes = Curve("peers", "ours", [(at / HOUR_S, float(size)) for at, size in played.sizes])
    drawn = ElementTree.fromstring(draw_plot(curves(SMALL, played, restarts), sizes, SMALL.hours))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 4


@pytest.mark.parametrize(
    ("losses", "restarts", "steps"),
    [
        ([], 0, 360),
        ([1000.0], 1, 60 + (3600 - 1300) // 10),
        ([599.0], 1, 0 + (3600 - 899) // 10),
        ([1000.0, 1100.0], 2, 60 + (3600 - 1400) // 10),
        ([3500.0], 1, 300),
    ],
)
def test_a_restart_costs_what_was_not_saved_and_its_own_time(losses, restarts, steps):
    run = Restarts.play(losses, seconds=3600.0, step_s=10.0, costs=(600.0, 300.0))
    assert (run.restarts, run.steps) == (restarts, steps)
