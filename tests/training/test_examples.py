"""Every example runs, with two peers, as its first lines say."""

import re
import shlex
import subprocess
import sys

import pytest
from torch.distributed.run import get_args_parser

from pccl.training.settings import NOTICE_S
from tests.e2e.harness import ROOT, _environment
from tests.patience import HANG_S
from tests.training.test_processes import master, processes

__all__ = ["master", "processes"]

EXAMPLES = ROOT / "examples"


def run(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("name", "arguments", "last"),
    [
        ("hello_all_reduce.py", ["20"], r"step 19: "),
        (
            "diloco_char_gpt.py",
            ["--rounds", "3", "--every", "4", "--min-peers", "2"],
            r"validation loss .*digest (\w+)",
        ),
        ("ddp_digits.py", ["40"], r"right after 40 steps, digest (\w+)"),
        ("async_diloco.py", ["4"], r"computing .*digest (\w+)"),
        ("streaming_diloco.py", ["3"], r"MB sent in 3 rounds, digest (\w+)"),
    ],
)
def test_an_example_runs(master, name, arguments, last):
    peers = [run(EXAMPLES / name, master.address, *arguments) for _ in range(2)]
    told = [peer.communicate(timeout=HANG_S)[0] for peer in peers]
    assert [peer.returncode for peer in peers] == [0, 0]
    ends = [re.search(last, text.splitlines()[-1]) for text in told]
    assert all(ends), told
    if name == "diloco_char_gpt.py":
        assert ends[0].group(1) == ends[1].group(1)


def test_the_demo_of_training_survives_its_kill(processes):
    demo = run(EXAMPLES / "demo_train.py", 6, 2, 2, 3)
    text = demo.communicate(timeout=HANG_S)[0]
    assert demo.returncode == 0, text
    assert "3 peers end with 1 digest" in text


def test_the_recipe_goes_on_after_all_its_peers_were_killed(master, tmp_path):
    def start(number, rounds):
        settings = ["--every", "4", "--min-peers", "2", "--rounds", rounds, "--folder", tmp_path / str(number)]
        return run(EXAMPLES / "titan_loop.py", master.address, *settings)

    peers, seen = [start(number, 10**6) for number in range(2)], {}
    for peer in peers:
        assert peer.stdout.readline().startswith("begins at step 0, ")
    while not all(list((tmp_path / str(number)).glob("round-*.pt")) for number in range(2)):
        for peer in peers:
            number, digest = re.fullmatch(r"round (\d+): (\w+)\n", peer.stdout.readline()).groups()
            assert seen.setdefault(number, digest) == digest
    for peer in peers:
        peer.kill()
        peer.communicate()
    saved = max(int(path.stem.split("-")[1]) for path in tmp_path.glob("*/round-*.pt"))
    again = [start(number, saved + 3) for number in range(2)]
    told = [peer.communicate(timeout=HANG_S)[0].splitlines() for peer in again]
    assert [peer.returncode for peer in again] == [0, 0]
    assert {int(lines[0].split()[3].rstrip(",")) for lines in told} == {4 * saved}
    assert len({lines[0] for lines in told}) == 1, "learning rates differ"
    assert len({lines[-1].split()[-1] for lines in told}) == 1, told


def test_nodes_of_two_ranks_train_a_sharded_model(master):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    example = [EXAMPLES / "fsdp_hybrid.py", master.address, "--rounds", "3", "--every", "4", "--min-peers", "2"]
    nodes = [run(*command, *example) for _ in range(2)]
    told = [node.communicate(timeout=HANG_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    digests = [dict(re.findall(r"rank (\d): 3 rounds, digest of its shards (\w+)", text)) for text in told]
    assert digests[0] == digests[1]
    assert set(digests[0]) == {"0", "1"}
    assert digests[0]["0"] != digests[0]["1"]


def test_there_is_a_test_for_each_example():
    source = (ROOT / "tests" / "training" / "test_examples.py").read_text()
    assert all(path.name in source for path in EXAMPLES.glob("*.py") if path.name != "char_gpt.py")


TORCHRUN = [
    (path.name, line)
    for path in (*sorted((ROOT / "docs").glob("*.md")), EXAMPLES / "fsdp_hybrid.py")
    for line in re.findall(r"^.*torchrun (--.*\.py.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), TORCHRUN, ids=[page for page, _ in TORCHRUN])
def test_torchrun_takes_the_lines_of_the_pages_and_gives_ranks_time_to_save(page, line):
    """By default it kills them 30 s after it told them to go: 5 s after the time for the last round."""
    given = get_args_parser().parse_args(shlex.split(line))
    if given.max_restarts:
        assert given.shutdown_timeout > NOTICE_S + 10
    assert given.nproc_per_node
    assert {name for name, _ in TORCHRUN} == {"deploy.md", "training.md", "fsdp_hybrid.py"}
