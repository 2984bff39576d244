"""Calls that may fail, for the tests of deaths: each with tensors full of one number, told tag by tag how it ended."""

import hashlib

import numpy as np

from pccl import ErrorFeedback, PCCLError

SMALL, LARGE = 100, 1_000_003
"""Elements: a contribution that travels with its vote, and one that goes around the ring in many segments."""

FEEDBACK = {"coded": ErrorFeedback("minmax8"), "coded small": ErrorFeedback("minmax8")}

MANY = [300_000, 100, 1, 90_000]
FLIGHT = [SMALL, LARGE, 1, 200_000, SMALL, 30_000]
"""By tag from 0."""


def make_call(communicator, call, share, tags=None, root=None):
    """How each tag of this call ended; only these tags, if they are named."""
    if call == "many":
        arrays = [np.full(count, share, ("float32", "int64")[place % 2]) for place, count in enumerate(MANY)]
        return {"0": end_of(lambda: (communicator.all_reduce_many(arrays), arrays), arrays, share)}
    counts = {"small": [SMALL], "coded small": [SMALL], "flight": FLIGHT}.get(call, [LARGE])
    arrays = {tag: np.full(counts[tag], share, "float32") for tag in (tags or range(len(counts)))}
    # Every peer launches them in an order of its own.
    order = sorted(arrays, key=lambda tag: hash((share, tag)))
    waits = {tag: launch(communicator, call, arrays[tag], tag, root) for tag in order}
    return {str(tag): end_of(waits[tag], [array], share) for tag, array in arrays.items()}


def launch(communicator, call, array, tag, root):
    """Launch it; a function that waits for it: what it was, and its results, equal on all peers. One that cannot be
    launched says so when it is waited for."""
    try:
        if call == "gather":
            work = communicator.all_gather(array, tag=tag, async_op=True)
            return lambda: (work.wait(), list(work.shares().output))
        if call == "scatter":
            work = communicator.reduce_scatter(array, tag=tag, async_op=True)
            return lambda: (work.wait(), [work.shares().output[:1]])  # Parts differ in length, and in nothing else.
        if call == "broadcast":
            work = communicator.broadcast(array, root, tag=tag, async_op=True)
        elif call in FEEDBACK:
            # Of equal numbers this codec loses nothing, and so there is nothing to carry.
            work = communicator.all_reduce(array, tag=tag, quantize=FEEDBACK[call], async_op=True)
        else:
            work = communicator.all_reduce(array, tag=tag, async_op=True)
        return lambda: (work.wait(), [array])
    except PCCLError as refused:
        error = refused

        def wait():
            raise error

        return wait


def end_of(wait, inputs, share):
    try:
        info, results = wait()
    except PCCLError as error:
        intact = all((array == share).all() for array in inputs)
        return {"error": type(error).__name__, "reason": str(error), "intact": bool(intact)}
    digest = hashlib.sha256(b"".join(array.tobytes() for array in results)).hexdigest()
    values = sorted({float(value) for array in results for value in (array.min(), array.max())})
    return {"error": None, "peers": sorted(info.peers), "values": values, "digest": digest}
