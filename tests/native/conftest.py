"""`make sanitize` runs these tests over another build of the native part: the one that PCCL_TEST_NATIVE names."""

import importlib.util
import os
import sys

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
