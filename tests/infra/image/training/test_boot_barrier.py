from __future__ import annotations

from pathlib import Path

import pytest
from training.boot_barrier import wait_at_boot_barrier
from training.errors import BootBarrierError


def test_says_ready_and_waits_for_go(tmp_path: Path) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        assert (tmp_path / "ready").exists()
        slept.append(seconds)
        if len(slept) == 3:
            (tmp_path / "go").touch()

    wait_at_boot_barrier(tmp_path, clock=lambda: 0.0, sleep=sleep)
    assert slept == [0.02] * 3


def test_gives_up_at_the_deadline(tmp_path: Path) -> None:
    ticks = iter(range(0, 1000, 100))
    with pytest.raises(BootBarrierError, match=r"`go` .*SM_BOOT_BARRIER_DIR=.* 300 s"):
        wait_at_boot_barrier(tmp_path, clock=lambda: float(next(ticks)), sleep=lambda seconds: None)
