"""Peers and masters forked from a process that has imported all they need: Python's own start and these imports take
half a second of a processor, many a test takes less.

Owns that process, the nursery, and how its children become ours. They are processes like others: their parent is
whoever runs the tests, and descriptors, arguments and environment are their own. What they have in common with each
other, unlike peers of different interpreters, is the seed of `hash`. Must not know what peers do.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys

IMPORTED = (
    "numpy",
    "pccl.cli.master",
    "pccl.dataplane.native",
    "pccl.dataplane.reference",
    "tests.e2e.conformance",
    "tests.e2e.ends",
    "tests.e2e.peer_script",
)
"""What children would import sooner or later. Without torch, which few of them need: it takes seconds."""

TORCH = ("torch._dynamo",)
"""For those who need it. The first optimizer imports this, which takes as long as the rest of torch."""

REQUEST_BYTES_MAX = 1 << 17
"""Arguments and the environment: less than the kernel sends in one message."""

PR_SET_CHILD_SUBREAPER = 36
"""From <linux/prctl.h>."""


# ── in the process that runs tests ───────────────────────────────────────────────────────────────────────────────────


class Child:
    """What the tests use of a `subprocess.Popen`."""

    def __init__(self, pid, stdin, stdout):
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode = None

    def poll(self):
        return self._reap(os.WNOHANG)

    def wait(self, timeout=None):
        if self.returncode is None and timeout is not None:
            ending = os.pidfd_open(self.pid)
            try:
                if not select.select([ending], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            finally:
                os.close(ending)
        return self._reap(0)

    def _reap(self, options):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:  # Else the number may be somebody else's.
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Nursery:
    """Ends with the process that has started it, whose end of the socket closes then."""

    def __init__(self, cwd, environment, imports=()):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Numpy's library for matrices would start threads, which no fork survives.
        environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            command = [sys.executable, "-u", "-m", "tests.e2e.nursery", *imports]
            self._process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=theirs, stdout=subprocess.DEVNULL)
        self.pid = self._process.pid
        atexit.register(self._end)

    def start(self, module, *arguments, environment, stderr):
        """A child in which the `main` of this module runs, with pipes for its input and output."""
        request = json.dumps([module, arguments, environment]).encode()
        stdin, our_stdin = os.pipe()
        our_stdout, stdout = os.pipe()
        try:
            with _adopting_orphans():
                socket.send_fds(self._socket, [request], [stdin, stdout, stderr])
                pid = int(self._socket.recv(REQUEST_BYTES_MAX))
                self._socket.recv(REQUEST_BYTES_MAX)  # Now it is an orphan, and so ours.
        finally:
            os.close(stdin)
            os.close(stdout)
        return Child(pid, open(our_stdin, "w"), open(our_stdout))

    def _end(self):
        self._socket.close()
        self._process.wait()


@contextlib.contextmanager
def _adopting_orphans():
    """Only when one is born for us: what the tests themselves leave behind is not ours to wait for."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def _prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# ── in the nursery ───────────────────────────────────────────────────────────────────────────────────────────────────


def bear_children(nursery):
    """Returns in every child, with what was asked for; and None when nobody is left to ask."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(nursery, REQUEST_BYTES_MAX, 3)
        if not request:
            return None
        middle = os.fork()
        if middle == 0:
            child = os.fork()
            if child == 0:
                nursery.detach()  # Its number is that of the standard input.
                for number, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                return json.loads(request)
            nursery.send(str(child).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        nursery.send(b"orphaned")
        for descriptor in descriptors:
            os.close(descriptor)


def main():
    for name in (*IMPORTED, *sys.argv[1:]):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "children of a process with threads may hang"
    request = bear_children(socket.socket(fileno=0))
    if request is None:
        return
    module, arguments, environment = request
    sys.argv = [module, *arguments]
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(importlib.import_module(module).main())


if __name__ == "__main__":
    main()
