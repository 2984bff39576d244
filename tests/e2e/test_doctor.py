"""`pccl doctor` names the fault, and only it, in real set-ups: real sockets, real limits, real network namespaces."""

import contextlib
import http.server
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest

from pccl import MasterNode
from pccl.wire.framing import MAGIC, VERSION, frame
from tests.e2e.harness import ROOT, MasterProcess
from tests.patience import HANG_S, allow

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")} | {
    "PYTHONPATH": str(ROOT / "src")
}
WITHIN_S = 10.0
"""On a machine with nothing else to do."""


def doctor(address, *, prefix=(), limit=None, **settings):
    """What a doctor found that is not well, and its exit status."""
    command = [*prefix, sys.executable, "-m", "pccl", "doctor", *([address] if address else []), "--json"]

    def lower():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    began = time.monotonic()
    told = subprocess.run(
        command,
        env=ENVIRONMENT | settings,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd="/",
        preexec_fn=lower if limit else None,
    )
    assert told.stdout, told.stderr
    assert time.monotonic() - began < allow(WITHIN_S)
    facts = json.loads(told.stdout)
    return [each for each in facts["findings"] if each["level"] != "ok"], told.returncode


@pytest.fixture(scope="module")
def master():
    process = MasterProcess()
    yield process
    process.end()


def the_one(found, check, level):
    """There is one finding, and it is this, with a remedy."""
    findings, _ = found
    assert [(each["check"], each["level"]) for each in findings] == [(check, level)], findings
    assert findings[0]["fix"]
    return findings[0]["what"]


def test_a_healthy_machine_has_no_findings_and_leaves_no_trace(master):
    assert doctor(master.address) == ([], 0)
    command = [sys.executable, "-m", "pccl", "status", master.address, "--json"]
    status = json.loads(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True).stdout)
    assert (status["epoch"], status["peers"], status["events"]) == (0, [], [])


def test_a_wrong_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = doctor(f"127.0.0.1:{taken.getsockname()[1]}")
    assert "Connection refused" in the_one(found, "master", "FAIL")
    assert found[1] == 4


def test_a_name_that_does_not_exist():
    the_one(doctor("no-such-host.invalid"), "master", "FAIL")


def test_another_service_on_the_port():
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        found = doctor(f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    the_one(found, "master", "FAIL")


def serve_once(listener, data):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(data)
            connection.close()


def test_another_version_of_the_protocol():
    other = MAGIC + (VERSION + 1).to_bytes(2, "little") + b"\x01\x00" + frame(b"please upgrade")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve_once, args=(listener, other), daemon=True).start()
        what = the_one(doctor(f"127.0.0.1:{listener.getsockname()[1]}"), "master", "FAIL")
    assert f"version {VERSION + 1}" in what
    assert "please upgrade" in what


def test_a_service_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        what = the_one(doctor(f"127.0.0.1:{listener.getsockname()[1]}"), "master", "FAIL")
    assert "sent nothing" in what


def test_the_port_of_this_peer_is_taken(master):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        found = doctor(master.address, PCCL_LISTEN=place)
    assert place in the_one(found, "listen", "FAIL")
    assert found[1] == 1


def test_a_wrong_announce(master):
    with socket.socket() as nothing:
        nothing.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nothing.getsockname()[1]}"
        what = the_one(doctor(master.address, PCCL_ANNOUNCE=place), "dial back", "FAIL")
    assert place in what


def test_an_announced_address_that_the_master_cannot_try(master):
    """Of another gateway, say: it may be right, so it is a warning, and the port there is not looked for here."""
    found = doctor(master.address, PCCL_ANNOUNCE="203.0.113.9:40000")
    assert "203.0.113.9" in the_one(found, "announce", "warn")
    assert found[1] == 0


def test_a_right_announce_of_a_run_with_a_token(tmp_path):
    with MasterNode("127.0.0.1:0", secret=tmp_path / "master.secret") as guarded:
        address = f"pccl://127.0.0.1:{guarded.port}#{guarded.token}"
        assert doctor(address, PCCL_ANNOUNCE="127.0.0.1") == ([], 0)


def test_few_descriptors(master):
    found = doctor(master.address, limit=64)
    assert "ulimit -n" in the_one(found, "descriptors", "FAIL")


def test_a_misspelt_variable(master):
    found = doctor(master.address, PCCL_SILENCE="3")
    assert "PCCL_SILENCE is set" in the_one(found, "variables", "warn")
    assert found[0][0]["fix"] == "did you mean PCCL_SILENCE_S?"
    assert found[1] == 0


def test_a_foreign_package(master, tmp_path):
    (tmp_path / "pccl").mkdir()
    (tmp_path / "pccl" / "__init__.py").write_text("")
    found = doctor(master.address, PYTHONPATH=os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(tmp_path)]))
    assert str(tmp_path) in the_one(found, "foreign pccl", "warn")


def test_a_foreign_command(master, tmp_path):
    other = tmp_path / "pccl"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    found = doctor(master.address, PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert str(other) in the_one(found, "foreign pccl", "warn")


@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime")
def test_a_clock_that_is_wrong(master):
    what = the_one(doctor(master.address, prefix=("faketime", "-f", "+5m")), "clock", "warn")
    assert "ahead of the master's" in what


NAMESPACES = os.geteuid() == 0 and shutil.which("ip") and shutil.which("iptables")


@pytest.fixture
def wire():
    """Two network namespaces, the master's and the peer's, with a wire between them."""
    here, there = f"pccl-m{os.getpid()}", f"pccl-p{os.getpid()}"

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in (here, there):
            ip("netns", "add", name)
        ip("link", "add", "m0", "netns", here, "type", "veth", "peer", "name", "p0", "netns", there)
        for name, device, address in ((here, "m0", "10.77.0.1/24"), (there, "p0", "10.77.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", device)
            for each in (device, "lo"):
                ip("-n", name, "link", "set", each, "up")
        command = [
            "ip",
            "netns",
            "exec",
            here,
            sys.executable,
            "-u",
            "-m",
            "pccl",
            "master",
            "--listen",
            "0.0.0.0:47100",
            "--insecure",  # what the doctor finds is the same with a token
        ]
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        assert "NOT SECURED" in process.stdout.readline()
        assert "listens" in process.stdout.readline()
        yield ("ip", "netns", "exec", there)
        process.terminate()
        process.wait()
        process.stdout.close()
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.skipif(not NAMESPACES, reason="needs root, ip and iptables")
class TestInNamespaces:
    def drop(self, inside, *rule):
        subprocess.run([*inside, "iptables", "-A", *rule, "-j", "DROP"], check=True, capture_output=True)

    def test_a_healthy_wire(self, wire):
        assert doctor("10.77.0.1:47100", prefix=wire) == ([], 0)

    def test_the_port_of_a_peer_is_dropped(self, wire):
        self.drop(wire, "INPUT", "-p", "tcp", "--dport", "47200")
        found = doctor("10.77.0.1:47100", prefix=wire, PCCL_LISTEN=":47200")
        assert "10.77.0.2:47200: no answer" in the_one(found, "dial back", "FAIL")
        assert found[1] == 1

    def test_a_black_hole(self, wire):
        self.drop(wire, "OUTPUT", "-p", "tcp", "--dport", "47100")
        found = doctor("10.77.0.1:47100", prefix=wire)
        assert "no answer" in the_one(found, "master", "FAIL")
        assert found[1] == 4

    def test_no_route(self, wire):
        the_one(doctor("10.99.0.1:47100", prefix=wire), "master", "FAIL")

    def test_a_wrong_announce(self, wire):
        what = the_one(doctor("10.77.0.1:47100", prefix=wire, PCCL_ANNOUNCE="10.77.0.9"), "announce", "warn")
        assert "10.77.0.9" in what
        assert "10.77.0.2" in what
