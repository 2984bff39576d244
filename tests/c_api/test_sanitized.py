"""The library and a program under the address sanitizer, and under valgrind: as far as CPython lets them look.

CPython keeps memory until its end, which never comes here, so leaks are not looked for; of valgrind's findings only
those count whose stack has a function of ours and none of Python's."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.c_api.building import HERE, CProcess, compile_program, environment, parse
from tests.c_api.test_functions import admitted
from tests.c_api.test_guest import in_step
from tests.c_api.test_hosts import VERSION, build_library
from tests.e2e.harness import PATIENCE_S

SANITIZER = "-fsanitize=address,undefined"


@pytest.fixture
def sanitized(tmp_path):
    """A program and its own library, both built so."""
    library = build_library(tmp_path / "lib", VERSION, SANITIZER, "-g", "-fno-omit-frame-pointer")
    flags = [SANITIZER, f"-L{library}", f"-Wl,-rpath,{library}"]
    return compile_program("gcc", HERE / "actor.c", tmp_path / "actor", *flags)


def test_nothing_is_found_by_the_address_sanitizer(sanitized, master, processes, tmp_path):
    options = f"detect_leaks=0:log_path={tmp_path}/report"
    env = environment(PCCL_PYTHON=sys.executable, ASAN_OPTIONS=options, UBSAN_OPTIONS=f"log_path={tmp_path}/report")
    first, second = peers = [CProcess(sanitized, env=env) for _ in range(2)]
    processes.extend(peers)
    for each in peers:
        each.become_peer(master.port)
    assert first.do("connect").result == 0
    admitted(second, [first])
    in_step(first, second, count=100_000)
    for each in peers:
        each.order("many", 8, 1_000, 1, 3)
    for each in peers:
        assert each.answer("many").result == 0
        each.succeed("launch", 1, 1_000, 1)
    assert [each.do("await", 1).result for each in peers] == [0, 0]
    assert set(first.do("nulls").words) == {"3"}
    first.order("fork")
    answers = {answer.order: answer for answer in (parse(first.line()), parse(first.line()))}
    os.kill(int(answers["fork"].facts["child"]), signal.SIGKILL)
    for each in peers:
        each.order("destroy")
        each.order("exit", 5)
        assert each.process.wait(PATIENCE_S) == 5
    assert [path.read_text() for path in tmp_path.glob("report*")] == []


def test_nothing_of_ours_is_found_by_valgrind(actor, master, tmp_path):
    if shutil.which("valgrind") is None:
        pytest.skip("there is no valgrind on this machine")
    orders = f"init\ncreate {master.port} 0 0\nconnect\nnulls\nsize 1\nsync 1 1 1000 0 w\ncreate_master 0\nrun_master\n"
    orders += "interrupt_master\nawait_master\ndestroy_master\ndestroy\n"
    command = ["valgrind", "-q", "--trace-children=no", f"--log-file={tmp_path}/report", "--num-callers=40", str(actor)]
    done = subprocess.run(command, input=orders, env=environment(), capture_output=True, text=True, check=True)
    codes = [line.split()[1] for line in done.stdout.splitlines()]
    assert codes == ["0"] * 13, done.stdout
    findings = re.split(r"==\d+== \n", (tmp_path / "report").read_text())
    ours = [each for each in findings if "libpccl.so" in each and "libpython" not in each]
    assert ours == []
