"""`make sanitize` runs these tests over another build of the native part: the one that PCCL_TEST_NATIVE names."""

import importlib.util
import os
import sys

import pytest

import pccl

if path := os.environ.get("PCCL_TEST_NATIVE"):
    spec = importlib.util.spec_from_file_location("pccl._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["pccl._native"] = pccl._native = module


def pytest_report_header() -> str:
    return f"native part: {path or 'as installed'}"


@pytest.fixture
def one_strand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tests in which one lane takes over what another one has: such lanes are of one strand."""
    from tests.native.rings import Strands  # not before the native part is the one that is meant

    monkeypatch.setattr(Strands, "count", 1)
