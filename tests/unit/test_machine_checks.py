"""What a doctor says of this machine's settings."""

import pytest

from pccl.cli import machine_checks
from pccl.views.doctor import OK


@pytest.mark.parametrize(
    ("setting", "what"),
    [("1\n", "windows shrink in them"), ("0\n", "windows stay"), (None, "does not say")],
)
def test_what_windows_do_in_pauses_is_a_hint(setting, what, tmp_path, monkeypatch):
    path = tmp_path / "tcp_slow_start_after_idle"
    if setting is not None:
        path.write_text(setting)
    monkeypatch.setattr(machine_checks, "SLOW_START_AFTER_IDLE", path)
    found = machine_checks.pauses()
    assert found.level == OK
    assert what in found.what
    assert (machine_checks.SHRINKS_NOT in found.what) is (setting == "1\n")
