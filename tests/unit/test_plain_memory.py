"""Only plain memory is reduced: what is freed, wrapped, sparse, negated or masked is refused before anything reads it.

Each case ended the process, reduced the wrong numbers or raised another library's error before. They run in a process
of their own where a failure would be a segmentation fault.
"""

import ctypes
import enum
import re
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

from pccl import DataType, ReduceOp, SharedState, TensorInfo, UsageError
from pccl.api.calls import of_descriptor
from pccl.api.shared_state import hashed
from pccl.compat.descriptors import ReduceDescriptor, ReduceOpDescriptor, ReduceOperandDescriptor
from pccl.dataplane.tensors.buffers import buffers, tensor
from pccl.dataplane.tensors.device import contribution, operands
from pccl.dataplane.tensors.pool import Pool
from pccl.dataplane.tensors.staging import Gathered
from pccl.types import QuantizationAlgorithm
from tests.patience import HANG_S

torch = pytest.importorskip("torch")


def freed():
    values = torch.ones(8)
    values.untyped_storage().resize_(0)
    return values


def shrunk():
    values = torch.ones(8)
    values.untyped_storage().resize_(16)
    return values


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


def nested(layout):
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def masked():
    from torch.masked import masked_tensor

    return masked_tensor(torch.ones(3), torch.tensor([True, False, True]))


def under(transform):
    """What a transformation of functorch passes to the function that it transforms."""
    seen = []

    def look(values):
        seen.append(message(lambda: tensor(values, "all_reduce: send", writable=False)))
        return values.sum()

    transform(look)(torch.ones(2, 3))
    return seen[0]


KINDS = {
    "freed": (freed, "no memory for its 32 bytes: freed, as FSDP does"),
    "shrunk": (shrunk, "no memory for its 32 bytes"),
    "fake": (fake, "it is a FakeTensor, which has no elements"),
    "meta": (lambda: torch.ones(4, device="meta"), "it lies on meta"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "its layout is torch.sparse_csr, not plain memory"),
    "sparse": (lambda: torch.eye(3).to_sparse(), r"its layout is torch.sparse_coo, .* pass tensor.to_dense\(\)"),
    "mkldnn": (lambda: torch.ones(4, 4).to_mkldnn(), "its layout is torch._mkldnn"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8), "it is quantised"),
    "nested": (lambda: nested(torch.strided), "it is a nested tensor"),
    "jagged": (lambda: nested(torch.jagged), "it is a nested tensor"),
    "negative": (lambda: torch._neg_view(torch.ones(4)), r"\(is_neg\); pass .*tensor.resolve_neg\(\)"),
    "imaginary": (lambda: torch.ones(4, dtype=torch.complex64).conj().imag, r"\(is_neg\)"),
    "conjugate": (lambda: torch.ones(4, dtype=torch.complex64).conj(), r"\(is_conj\)"),
    "masked": (masked, "no memory for its 12 bytes: .* or a wrapper"),
    "zero": (lambda: torch._efficientzerotensor(4), "no memory"),
    "uninitialised": (torch.nn.parameter.UninitializedParameter, "no memory of its own"),
}


def message(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UsageError) as raised:
            call()
    return str(raised.value)


def make(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[kind][0]()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "call",
    [
        lambda it: operands(it, it, "call: x", Pool()),
        lambda it: operands(it, torch.ones(4), "call: x", Pool()),
        lambda it: operands(torch.ones(4), it, "call: x", Pool()),
        lambda it: contribution(it, "call: x", Pool()),
        lambda it: Gathered([np.ones(1), it], "call: x", Pool()),
        lambda it: TensorInfo.from_torch(it, "call: x"),
        lambda it: ReduceOpDescriptor.from_torch(it, it, None),
    ],
    ids=["in place", "send", "recv", "read only", "many", "shared state", "descriptor"],
)
def test_what_is_not_plain_memory_is_refused_by_every_call(kind, call):
    sentence = KINDS[kind][1]
    said = message(lambda: call(make(kind)))
    assert re.search(sentence, said), said


def test_transformed_tensors_are_refused():
    assert "no memory of its own" in under(torch.func.vmap)
    assert "no memory of its own" in under(torch.func.grad)


def test_plain_memory_is_taken_whatever_wraps_it():
    sub = torch.ones(3).as_subclass(type("Sub", (torch.Tensor,), {}))
    with torch.inference_mode():
        frozen = torch.ones(3)
    for plain in (sub, frozen, torch.nn.Parameter(torch.ones(3)), torch.ones(6)[3:], torch.ones(0)):
        found = tensor(plain, "call: x", writable=True)
        assert (found.address, found.count) == (plain.data_ptr(), plain.numel())


def test_a_state_whose_tensor_is_freed_is_refused_at_the_next_sync():
    values = torch.ones(8)
    state = SharedState([TensorInfo.from_torch(values, "w")])
    values.untyped_storage().resize_(0)
    assert "'w': it has no memory" in message(lambda: hashed(state))


def test_masked_arrays_are_refused():
    masked_array = np.ma.masked_array(np.ones(3, np.float32), [False, True, False])
    assert "masked array, whose mask would be ignored" in message(lambda: buffers(masked_array, masked_array))
    assert tensor(masked_array.data, "call: x", writable=True).count == 3


# ── DLPack ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Capsule(ctypes.Structure):
    """A managed tensor of DLPack before 1.0, which is a tensor first."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("rest", ctypes.c_void_p * 2),
    )


class Lender:
    """Lends so many float32 that lie nowhere."""

    def __init__(self, count, offset=0):
        self._shape = (ctypes.c_int64 * 1)(count)
        self._capsule = Capsule(None, (1, 0), 1, (2, 32, 1, 0), self._shape, None, offset)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._capsule), b"dltensor", None)


@pytest.mark.parametrize("offset", [0, 64])
def test_elements_that_are_lent_without_memory_are_refused(offset):
    assert "its 4 elements lie at no address" in message(lambda: contribution(Lender(4, offset), "all_gather", Pool()))
    assert tensor(Lender(0, offset), "call: x", writable=False).count == 0


def test_a_negative_length_is_refused():
    assert "-4 elements along an axis" in message(lambda: contribution(Lender(-4), "all_gather", Pool()))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, NotImplementedError])
def test_whatever_a_lender_raises_is_an_error_of_ours(error):
    class Refuses(Lender):
        def __dlpack__(self):
            raise error("no memory to lend")

    assert "its __dlpack__ says: no memory to lend" in message(lambda: contribution(Refuses(3), "all_gather", Pool()))


# ── by address ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("address", [0, None, -8])
def test_a_descriptor_must_have_addresses(address):
    options = ReduceDescriptor(3, ReduceOp.SUM, 0, ReduceOperandDescriptor(DataType.FLOAT), None)
    here = np.ones(3, np.float32).ctypes.data
    for pair in ((address, here), (here, address)):
        assert "lie at no address" in message(
            lambda pair=pair: of_descriptor("call", ReduceOpDescriptor(*pair, options), Pool())
        )


# ── a copy keeps the result ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("strided", "back"),
    [
        (torch.ones(4, 4)[:, ::2], "tensor.copy_(copy)"),
        (torch._neg_view(torch.ones(4)), "tensor.copy_(copy)"),
        (np.ones((4, 4))[:, ::2], "array[...] = copy"),
        (memoryview(bytearray(8))[::2], "copy the result back"),
    ],
    ids=["torch", "negative", "numpy", "buffer"],
)
def test_whoever_must_pass_a_copy_is_told_how_to_keep_the_result(strided, back):
    assert f"and afterwards {back}" in message(lambda: operands(strided, strided, "all_reduce", Pool()))
    assert f"and afterwards {back}" in message(lambda: tensor(strided, "all_reduce: recv", writable=True))
    assert "afterwards" not in message(lambda: tensor(strided, "all_reduce: send", writable=False))


# ── operations of other libraries ────────────────────────────────────────────────────────────────────────────────────


def operations():
    from torch.distributed import ReduceOp as Theirs

    names = {"SUM": "SUM", "AVG": "AVG", "PRODUCT": "PROD", "MIN": "MIN", "MAX": "MAX"}
    for name, ours in names.items():
        member = getattr(Theirs, name)
        yield pytest.param(member, ReduceOp[ours], id=f"{name} of torch")
        yield pytest.param(Theirs(member), ReduceOp[ours], id=f"{name} of torch, wrapped")


class Foreign(enum.IntEnum):
    """Numbered like that of no other library."""

    MIN = 0
    SUM = 4


@pytest.mark.parametrize(("theirs", "ours"), list(operations()))
def test_operations_of_torch_go_by_name(theirs, ours):
    assert ReduceOp.named(theirs) is ours


def test_operations_go_by_name_unless_they_are_numbers():
    assert ReduceOp.named(Foreign.MIN) is ReduceOp.MIN
    assert ReduceOp.named(Foreign.SUM) is ReduceOp.SUM
    assert [ReduceOp.named(number) for number in range(5)] == list(ReduceOp)
    assert ReduceOp.named("product") is ReduceOp.PROD
    assert all(ReduceOp.named(each) is each for each in ReduceOp)


NOT_OURS = [torch.distributed.ReduceOp.BAND, torch.distributed._make_nccl_premul_sum(2.0), max]


@pytest.mark.parametrize("wrong", [*NOT_OURS, QuantizationAlgorithm.MIN_MAX, 5, -1, True, None, 1.0, "median"])
def test_other_operations_are_refused(wrong):
    with pytest.raises(ValueError, match="it must be one of SUM, AVG, PROD, MAX, MIN, got"):
        ReduceOp.named(wrong)


# ── the crash itself ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["freed", "fake"])
def test_the_process_survives(kind):
    script = f"""
        from pccl import Communicator, MasterNode, UsageError
        import threading
        from tests.unit.test_plain_memory import make
        master = MasterNode("127.0.0.1:0")
        master.run()
        one, other = (Communicator(f"127.0.0.1:{{master.port}}") for _ in range(2))
        one.connect()
        joining = threading.Thread(target=other.connect)
        joining.start()
        while len(one.ring) < 2:
            one.update_topology()
        joining.join()
        for call in (one.all_reduce, one.all_reduce_async, lambda it: one.all_reduce_many([it, it])):
            try:
                call(make({kind!r}))
            except UsageError as error:
                print("refused", error)
        one.close(); other.close(); master.interrupt()
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=HANG_S
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("refused") == 3, run.stdout
