"""How the public API is misused: each line is an error to both type checkers. Should one be none, its comment is one."""

from pccl import Communicator, MasterNode, ReduceInfo, Work


def misuse(comm: Communicator, work: Work, master: MasterNode) -> None:
    comm.all_reduce(bytearray(3), op=1.5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.all_reduce(bytearray(3), bytearray(3), "avg")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    comm.all_reduce(bytearray(3), no_such=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    comm.all_reduce_many(bytearray)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.all_reduce(bytearray(3), quantize=8)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    info: ReduceInfo = comm.all_reduce(bytearray(3), async_op=True)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    info.seconds = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    work.wait("soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Communicator("localhost:1", stall="long")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Communicator("localhost:1", stall_s="long")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    master.interrupt(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
