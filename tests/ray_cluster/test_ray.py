"""Ray starts four peers and the master: one worker is killed, one peer added, the master's actor killed."""

import json

from tests.e2e.harness import Ended, Process
from tests.frameworks.fleet import needs

needs("ray")

WORKERS = 4


def test_survivors_keep_their_processes_and_all_end_with_equal_bits(tmp_path):
    settings = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    settings["XDG_STATE_HOME"] = str(tmp_path)
    cluster = Process("-m", "tests.ray_cluster.cluster", str(tmp_path), str(tmp_path / "secret"), settings=settings)
    try:
        end = expect(cluster, "end")
        expect(cluster, "example")
    finally:
        cluster.end()
    assert end["failed"] == []
    said = end["said"]
    workers = {name: lines for name, lines in said.items() if name.startswith("worker")}
    victim = f"worker-{end['victim']}"
    assert len(workers) == WORKERS + 1, "one worker is replaced, the others are not"
    assert len(said) == WORKERS + 2
    assert all([each["event"] for each in lines].count("joined") == 1 for lines in said.values())
    ends = [lines[-1] for name, lines in said.items() if name != victim]
    assert {each["event"] for each in ends} == {"done"}
    assert len({(each["round"], each["digest"]) for each in ends}) == 1
    assert sum(each["dropped"] for each in ends) == 0
    digests = {}
    for lines in said.values():
        for each in lines:
            if each["event"] == "round":
                assert digests.setdefault(each["round"], each["digest"]) == each["digest"]


def expect(cluster, event):
    """What it says then."""
    while True:
        try:
            line = cluster.line()
        except Ended as error:
            raise AssertionError(f"the cluster ended: {error}") from error
        if line.startswith(f'{{"event": "{event}"'):
            return json.loads(line)
        print(line)
