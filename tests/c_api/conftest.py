"""Programs are compiled once for all tests of a process."""

import shutil
import sys

import pytest

from tests.c_api.building import COMPILERS, HERE, CProcess, compile_program
from tests.e2e.conftest import master, processes, start_master, start_peers  # noqa: F401 - fixtures

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]  # There is no C API elsewhere.


@pytest.fixture(scope="session")
def actor(tmp_path_factory):
    """The program that obeys lines."""
    return compile_program("gcc", HERE / "actor.c", tmp_path_factory.mktemp("actor") / "actor")


@pytest.fixture(scope="session")
def another_actor(tmp_path_factory):
    """The same by the other compiler, where there is one."""
    compiler = next(each for each in reversed(COMPILERS) if shutil.which(each))
    return compile_program(compiler, HERE / "actor.c", tmp_path_factory.mktemp("actor") / "actor")


@pytest.fixture
def start(processes, actor):  # noqa: F811
    def start_it(program=actor, **settings):
        process = CProcess(program, **settings)
        processes.append(process)
        return process

    return start_it
