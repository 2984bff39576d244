"""What INFO lines cost small collectives: two peers and their master in this process, with INFO and without by turns.

    python bench/log_cost.py [--calls 1000] [--turns 9]

A turn is so many `all_reduce` of 16 floats, one after the other. Rounds that take less than a second are summed up in a
line every ten seconds, so what is measured is the counting. Lines go to a file that is thrown away. Prints one JSON
line: medians of the turns, CPU time of the whole process for a call of both peers, and the ratio of the two kinds.
"""

import argparse
import array
import json
import logging
import statistics
import tempfile
import threading
import time

from pccl import Communicator, MasterNode

LEVELS = {"warning": logging.WARNING, "info": logging.INFO}


def connect(master):
    """Both peers, in one ring."""
    first = Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1")
    first.connect()
    second = Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1")
    joining = threading.Thread(target=second.connect)
    joining.start()
    while first.world_size < 2:
        first.update_topology()
    joining.join()
    return first, second


def turn(pair, calls):
    """So many calls of both; seconds and CPU seconds of one."""

    def reduce(peer):
        tensor = array.array("f", range(16))
        for _ in range(calls):
            peer.all_reduce(tensor)

    threads = [threading.Thread(target=reduce, args=(peer,)) for peer in pair]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / calls, (time.process_time() - cpu) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    logger = logging.getLogger("pccl")
    with tempfile.TemporaryFile("w") as file, MasterNode("127.0.0.1:0") as master:
        logger.addHandler(logging.StreamHandler(file))
        logger.propagate = False
        pair = connect(master)
        turn(pair, arguments.calls)  # to be warm
        measured = {name: [] for name in LEVELS}
        for _ in range(arguments.turns):
            for name, level in LEVELS.items():
                logger.setLevel(level)
                measured[name].append(turn(pair, arguments.calls))
        for peer in pair:
            peer.close()
    facts = {"bench": "log_cost", "calls": arguments.calls, "turns": arguments.turns}
    for name, turns in measured.items():
        facts[f"{name}_ms"] = round(1e3 * statistics.median(each[0] for each in turns), 3)
        facts[f"{name}_cpu_ms"] = round(1e3 * statistics.median(each[1] for each in turns), 3)
    facts["cpu_ratio"] = round(facts["info_cpu_ms"] / facts["warning_cpu_ms"], 3)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
