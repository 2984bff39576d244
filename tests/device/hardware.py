"""The device that tests of device tensors run on: one of our own, compiled once, or the real one that PCCL_TEST_DEVICE
names (`cuda`, `xpu`, `mps`). Also for peers in processes of their own."""

import ctypes
import fcntl
import hashlib
import os
import subprocess
import time
import types
from pathlib import Path

import torch

NAME = os.environ.get("PCCL_TEST_DEVICE", "")
"""Of a real device; empty for ours."""
SOURCE = Path(__file__).with_name("device.cpp")
BUILT = Path(__file__).parents[2] / "build" / "test-device"
COUNTERS = (
    *("copies_out", "bytes_out", "copies_in", "bytes_in", "waits"),
    *("pinned", "pinned_peak", "memory", "memory_peak"),
)
SWITCHES = ("copy_us", "no_pinning", "pinned_is_ours", "fail_copies_out", "fail_copies_in")


def build():
    """The library of this source for this torch, compiled if it is not there yet. One process at a time."""
    place = Path(torch.__file__).parent
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-parameter",
    ]
    command += ["-isystem", f"{place}/include", f"-L{place}/lib", "-ltorch_cpu", "-lc10"]
    key = hashlib.sha256(f"{torch.__version__} {command}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    BUILT.mkdir(parents=True, exist_ok=True)
    library = BUILT / f"device-{key}.so"
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".part")
            subprocess.run([*command[:1], str(SOURCE), *command[1:], "-o", str(unfinished)], check=True)
            unfinished.rename(library)
    return library


class TestDevice:
    """Our own device: two of them, with counters and switches."""

    __test__ = False
    simulated = True
    kind = "tester"

    def __init__(self):
        self._library = ctypes.CDLL(str(build()))
        self._library.device_counter.restype = ctypes.c_int64
        self._library.device_switch.argtypes = (ctypes.c_int, ctypes.c_int64)
        scale = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_float)
        self._library.device_scale.argtypes = scale
        module = types.ModuleType(f"torch.{self.kind}")
        module.is_available = module.is_initialized = lambda: True
        module._is_in_bad_fork = lambda: False
        module.device_count = lambda: 2
        module.current_device = torch.accelerator.current_device_index
        module.manual_seed_all = lambda seed: None
        torch.utils.rename_privateuse1_backend(self.kind)
        torch._register_device_module(self.kind, module)
        self.first, self.second = torch.device(self.kind, 0), torch.device(self.kind, 1)

    def sleep(self, ms, device=None):
        """A kernel on the current stream that takes this long."""
        self._library.device_sleep((device or self.first).index, ms)

    def hold(self):
        """A kernel on the current stream that ends when it is released."""
        self._library.device_hold(self.first.index)

    def release(self):
        self._library.device_release()

    def scale(self, tensor, times, plus=0.0):
        """A kernel on the current stream: x becomes times * x + plus, for float32."""
        self._library.device_scale(tensor.device.index, tensor.data_ptr(), tensor.numel(), times, plus)

    def settle(self):
        """Wait for all streams; not counted."""
        self._library.device_settle()

    def count(self, name):
        return self._library.device_counter(COUNTERS.index(name))

    def counts(self):
        return {name: self.count(name) for name in COUNTERS}

    def reset(self):
        """Count from zero, and set all switches back."""
        self.release()
        self.settle()
        for which in range(len(SWITCHES)):
            self._library.device_switch(which, 0)
        self._library.device_reset()

    def switch(self, **values):
        for name, value in values.items():
            self._library.device_switch(SWITCHES.index(name), value)


class RealDevice:
    """One that this machine has."""

    simulated = False

    def __init__(self, kind):
        self.kind = kind
        self.first = torch.device(kind, 0)
        self.second = torch.device(kind, 1 if torch.accelerator.device_count() > 1 else 0)
        self._weights = torch.ones(2048, 2048, device=self.first)
        self._turns_per_ms = 1.0
        for _ in range(2):  # the first time is no measure
            began = time.perf_counter()
            self.sleep(50)
            self.settle()
            self._turns_per_ms *= 0.05 / (time.perf_counter() - began)

    def sleep(self, ms, device=None):
        weights = self._weights.to(device or self.first, non_blocking=True)
        for _ in range(max(1, int(ms * self._turns_per_ms))):
            weights @ weights

    def scale(self, tensor, times, plus=0.0):
        tensor.detach().mul_(times).add_(plus)

    def settle(self):
        torch.accelerator.synchronize(self.first)
        torch.accelerator.synchronize(self.second)

    def reset(self):
        self.settle()


def find():
    """The device of these tests."""
    return RealDevice(NAME) if NAME else TestDevice()
