"""The native part is built, loads, and tells the truth about the machine."""

import platform

from pccl.dataplane.native import build_info


def test_native_part_is_built_as_cxx20():
    assert build_info().cxx_standard >= 202002


def test_compiler_and_instruction_sets_are_told():
    info = build_info()
    assert info.compiler.split()[0] in {"gcc", "clang"}
    if platform.machine() in {"x86_64", "AMD64"}:
        assert "sse4.2" in info.instruction_sets
    elif platform.machine() in {"aarch64", "arm64"}:
        assert info.instruction_sets == ("neon",)
    assert info.compiler in str(info)
