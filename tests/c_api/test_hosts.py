"""Which Python is found, in every kind of program and environment; and the headers and files that builds need."""

import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pccl.c_api import layouts
from pccl.types import Result
from tests.c_api.building import COMPILERS, HERE, ROOT, compile_program, config, environment, shared_python

LIBRARY = Path(config("--cmakedir")[0]).parents[1] / "libpccl.so"
LIBPYTHON = shared_python()
VERSION = sysconfig.get_python_version()
SOURCES = sorted((ROOT / "native" / "c_api").glob("*.c"))


def first_call(actor, env, **more):
    """What the first call of a program says in this environment."""
    done = subprocess.run([str(actor)], input="init\n", env=env, capture_output=True, text=True, check=True, **more)
    assert done.stderr == ""
    return done.stdout.splitlines()[1]


def build_library(folder, version=VERSION, *flags):
    """libpccl.so, somewhere else; for another Python, perhaps."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'-DPCCL_PYTHON_VERSION="{version}"', f"-I{ROOT / 'include'}", "-std=gnu11", "-fvisibility=hidden"]
    command = ["gcc", "-shared", "-fPIC", *names, *flags, *map(str, SOURCES), "-o", str(folder / "libpccl.so")]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return folder


def test_an_empty_environment_will_do(actor):
    assert first_call(actor, {}).startswith("init 0")


def test_what_is_meant_for_other_pythons_is_not_obeyed(actor, tmp_path):
    (tmp_path / "pccl").mkdir()
    (tmp_path / "pccl" / "__init__.py").write_text("raise SystemExit('the wrong one')")
    env = {"PYTHONHOME": "/nowhere", "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "/nowhere", "PYTHONUTF8": "x"}
    assert first_call(actor, env, cwd=tmp_path).startswith("init 0")


def test_another_python_first_in_path_is_not_looked_at(actor, tmp_path):
    for name in ("python", "python3", f"python{VERSION}"):
        (tmp_path / name).write_text("#!/bin/false\n")
        (tmp_path / name).chmod(0o755)
    assert first_call(actor, {"PATH": str(tmp_path)}).startswith("init 0")


def test_where_there_is_no_python_a_sentence_says_so(actor, tmp_path):
    library = build_library(tmp_path / "elsewhere", "3.99")
    answer = first_call(actor, {"LD_PRELOAD": str(library / "libpccl.so")})
    assert answer.startswith(f"init {Result.INTERNAL_ERROR:d}")
    assert "no Python was found" in answer
    assert "libpython3.99" in answer
    assert "PCCL_PYTHON" in answer


@pytest.mark.parametrize("asked", [sys.executable, sys.prefix])
def test_a_library_elsewhere_uses_the_python_that_is_named(actor, tmp_path, asked):
    library = build_library(tmp_path / "elsewhere", "3.99")
    answer = first_call(actor, {"LD_PRELOAD": str(library / "libpccl.so"), "PCCL_PYTHON": asked})
    assert answer.startswith("init 0"), answer


@pytest.mark.parametrize("asked", ["/nowhere/bin/python", "/etc/hostname", "/etc"])
def test_what_is_named_and_no_python_is_refused(actor, asked):
    answer = first_call(actor, {"PCCL_PYTHON": asked})
    assert answer.startswith(f"init {Result.INTERNAL_ERROR:d}")
    assert f"got {asked}" in answer


def test_a_python_without_the_package_is_named(actor):
    answer = first_call(actor, {"PCCL_PYTHON": sys._base_executable})
    assert answer.startswith(f"init {Result.INTERNAL_ERROR:d}")
    assert "cannot import pccl.c_api" in answer
    assert "install the package pccl there" in answer


CALLING = f"""
import ctypes, signal, sys
library = getattr(ctypes, sys.argv[1])({str(LIBRARY)!r})
library.pcclGetLastErrorText.restype = ctypes.c_char_p
before = signal.getsignal(signal.SIGINT)
print(library.pcclInit(), library.pcclGetLastErrorText().decode())
assert signal.getsignal(signal.SIGINT) is before
"""


@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])
def test_a_program_in_python_uses_its_own(loader):
    done = subprocess.run([sys.executable, "-c", CALLING, loader], capture_output=True, text=True, env=environment())
    assert (done.stdout.split()[0], done.stderr, done.returncode) == ("0", "", 0), done


def test_a_program_in_a_python_without_the_package_gets_a_sentence():
    command = [sys._base_executable, "-I", "-c", CALLING, "CDLL"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.stdout.startswith(f"{Result.INTERNAL_ERROR:d} Python "), done
    assert "No module named 'pccl'" in done.stdout


def test_pccls_own_package_of_the_same_name_is_refused(tmp_path):
    (tmp_path / "pccl").mkdir()
    (tmp_path / "pccl" / "__init__.py").write_text("")
    command = [sys._base_executable, "-c", CALLING, "CDLL"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(PYTHONPATH=str(tmp_path)))
    assert done.stdout.startswith(f"{Result.INTERNAL_ERROR:d} Python "), done
    assert str(tmp_path / "pccl") in done.stdout, "it says which one was found"


@pytest.mark.parametrize(("program", "answer", "imported"), [(sys.executable, "0", "True"), (None, "2", "False")])
def test_a_program_that_embeds_python_out_of_sight_and_holds_its_lock(tmp_path, program, answer, imported):
    embedder = compile_program("gcc", HERE / "embedder.c", tmp_path / "embedder", "-Wno-pedantic")
    command = [str(embedder), str(LIBPYTHON), program or sys._base_executable]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    first, last = done.stdout.splitlines()
    assert (first.split()[0], last) == (answer, imported), done


# ── for builds ───────────────────────────────────────────────────────────────────────────────────────────────────────

STRUCTS = {
    "ccoip_socket_address_t": layouts.SocketAddress,
    "pcclCommCreateParams_t": layouts.CommCreateParams,
    "pcclReduceInfo_t": layouts.CReduceInfo,
    "pcclReduceDescriptor_t": layouts.CReduceDescriptor,
    "pcclReduceOpDescriptor_t": layouts.CReduceOpDescriptor,
    "pcclAsyncReduceOp_t": layouts.AsyncReduceOp,
    "pcclTensorInfo_t": layouts.CTensorInfo,
    "pcclSharedState_t": layouts.CSharedState,
    "pcclSharedStateSyncInfo_t": layouts.CSharedStateSyncInfo,
    "pcclBuildInfo_t": layouts.BuildInfo,
}
PCCLS_SIZES = {"ccoip_socket_address_t": 28, "pcclCommCreateParams_t": 36, "pcclReduceInfo_t": 24,
    "pcclReduceDescriptor_t": 40, "pcclReduceOpDescriptor_t": 56, "pcclAsyncReduceOp_t": 16, "pcclTensorInfo_t": 40,
    "pcclSharedState_t": 24, "pcclSharedStateSyncInfo_t": 16, "pcclBuildInfo_t": 1}  # fmt: skip
"""On machines with 64 bits."""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_layouts_are_those_of_the_compiler_and_of_pccl(compiler, tmp_path):
    program = compile_program(compiler, HERE / "layouts.c", tmp_path / "layouts")
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    found = dict(zip(printed[::2], map(int, printed[1::2]), strict=True))
    assert {name: found[name] for name in STRUCTS} == PCCLS_SIZES
    for name, struct in STRUCTS.items():
        assert ctypes.sizeof(struct) == found.pop(name)
        for field, *_ in struct._fields_:
            place = next(key for key in found if re.fullmatch(rf"{name}\.(\w+\.)?{field}", key))
            assert getattr(struct, field).offset == found.pop(place), place
    assert found == {}


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_headers_are_good_in_cpp(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} on this machine")
    source = tmp_path / "program.cpp"
    source.write_text("#include <ccoip.h>\n#include <pccl.h>\nint main() { return pcclInit(); }\n")
    flags = ["-std=c++11", "-pedantic", "-Wall", "-Werror", *config("--cflags"), str(source), *config("--libs")]
    subprocess.run([compiler, *flags, "-o", str(tmp_path / "program")], check=True)
    subprocess.run([str(tmp_path / "program")], env={}, check=True)


def test_only_our_functions_are_exported_and_no_python_is_linked():
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in symbols.stdout.splitlines()}
    declared = set(re.findall(r"\b(pccl[A-Z]\w+)\(", (ROOT / "include" / "pccl.h").read_text(encoding="utf-8")))
    assert names == declared
    assert len(names) == 20
    needed = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    assert "python" not in needed


HELLO = '#include <pccl.h>\n#include <stdio.h>\nint main(void) { return printf("%d\\n", pcclInit()) != 2; }\n'


@pytest.fixture
def moved(tmp_path):
    """Headers and library at another place, as a wheel that was unpacked by hand."""
    for folder in ("include", "lib"):
        shutil.copytree(LIBRARY.parents[1] / folder, tmp_path / "moved to" / "pccl" / folder)
    (tmp_path / "hello.c").write_text(HELLO)
    return tmp_path / "moved to" / "pccl"


def test_pkg_config_finds_all_from_where_it_lies(moved, tmp_path):
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config on this machine")
    env = environment(PKG_CONFIG_PATH=str(moved / "lib" / "pkgconfig"))
    flags = subprocess.run("pkg-config --cflags --libs pccl", shell=True, env=env, capture_output=True, text=True)
    subprocess.run(f"gcc hello.c {flags.stdout.strip()} -o hello", shell=True, cwd=tmp_path, check=True)
    done = subprocess.run([str(tmp_path / "hello")], env={"PCCL_PYTHON": sys.executable}, capture_output=True)
    assert done.stdout == b"0\n"


def test_cmake_finds_all_from_where_it_lies(moved, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("there is no cmake on this machine")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(hello C)\nfind_package(pccl 0.1 REQUIRED)\n"
        "add_executable(hello hello.c)\ntarget_link_libraries(hello PRIVATE pccl::pccl)\n"
        "add_executable(plain hello.c)\ntarget_link_libraries(plain PRIVATE pccl)\n"
    )
    settings = ["-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-Dpccl_DIR={moved / 'lib' / 'cmake' / 'pccl'}"]
    subprocess.run(["cmake", *settings], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    for program in ("hello", "plain"):
        command = [str(tmp_path / "build" / program)]
        done = subprocess.run(command, env={"PCCL_PYTHON": sys.executable}, capture_output=True, check=True)
        assert done.stdout == b"0\n"
