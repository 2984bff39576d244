"""A local Ray cluster, four workers of Ray Train: one is killed, one peer is added, the master's actor is killed.
Prints what is left to compare."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from examples.deploy.ray_train import fit
from pccl.integrations.ray import PCCLConfig, start_master
from tests.patience import HANG_S
from tests.ray_cluster import peers

WORKERS = 4


class Watch:
    """What all peers have written."""

    def __init__(self, folder):
        self._folder, self._pause = folder, threading.Event()

    def said(self):
        """By kind and process."""
        found = {}
        for path in self._folder.glob("*.jsonl"):
            kind, _, pid = path.stem.partition("-")
            lines = path.read_text().splitlines(keepends=True)
            found[kind, int(pid)] = [json.loads(line) for line in lines if line.endswith("\n")]
        return found

    def until(self, what, condition):
        """Until what was written is so."""
        deadline = time.monotonic() + HANG_S
        while not condition(self.said()):
            if time.monotonic() > deadline:
                raise SystemExit(f"never came: {what}; {[(key, said[-1:]) for key, said in self.said().items()]}")
            self._pause.wait(0.1)
        print(json.dumps({"event": "seen", "what": what}), flush=True)

    def rounds_of(self, count, more):
        """So many processes have made so many more rounds, all of them together."""
        before = self.latest()

        def reached(said):
            new = [[each for each in lines if is_round(each, count, before)] for lines in said.values()]
            return sum(len(each) >= more for each in new) >= count

        self.until(f"{more} rounds of {count} peers", reached)

    def latest(self):
        return max((each["round"] for lines in self.said().values() for each in lines), default=0)


def is_round(said, count, after):
    return said["event"] == "round" and said["peers"] == count and said["round"] > after


@ray.remote(num_cpus=0.1)
class Added:
    """A peer that is no worker of Ray Train."""

    def train(self, address, told):
        os.environ["PCCL_MASTER"] = address
        peers.train({**told, "kind": "actor"})


def disturb(watch, master, told):
    """What the test is about."""
    watch.rounds_of(WORKERS, 3)
    first = {pid for kind, pid in watch.said() if kind == "worker"}
    victim = min(first)
    os.kill(victim, signal.SIGKILL)
    watch.rounds_of(WORKERS, 3)
    added = Added.remote()
    training = added.train.remote(ray.get(master.address.remote()), told)
    watch.rounds_of(WORKERS + 1, 3)
    address, pid = ray.get([master.address.remote(), master.pid.remote()])
    os.kill(pid, signal.SIGKILL)
    watch.rounds_of(WORKERS + 1, 5)
    assert ray.get(master.pid.remote()) != pid, "the master's actor must have been started again"
    assert ray.get(master.address.remote()) == address
    (Path(told["folder"]) / "stop").write_text(str(watch.latest() + 10))
    ray.get(training)
    return victim


def main():
    folder, secret = Path(sys.argv[1]), sys.argv[2]
    environment = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": environment},
        log_to_driver=False,
    )
    master = start_master(0, secret)
    port = int(ray.get(master.address.remote()).partition("#")[0].rpartition(":")[2])
    told = {"folder": str(folder)}
    trainer = DataParallelTrainer(
        peers.train_as_worker,
        train_loop_config=told,
        backend_config=PCCLConfig(port=port, secret=secret),
        scaling_config=ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=-1)),
    )
    watch, failed = Watch(folder), []

    def fit_all():
        try:
            trainer.fit()
        except Exception as error:
            failed.append(repr(error))

    thread = threading.Thread(target=fit_all)
    thread.start()
    victim = disturb(watch, master, told)
    thread.join(HANG_S)
    said = {f"{kind}-{pid}": lines for (kind, pid), lines in watch.said().items()}
    print(json.dumps({"event": "end", "victim": victim, "failed": failed, "said": said}), flush=True)
    fit(workers=2, rounds=3, port=0)
    print(json.dumps({"event": "example"}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
