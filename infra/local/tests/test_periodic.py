from __future__ import annotations

import threading
from itertools import chain, repeat

from sagemaker_emulator.periodic import PeriodicThread


def test_work_is_done_after_each_pause_until_it_is_stopped() -> None:
    done = threading.Event()
    times: list[None] = []

    def work() -> None:
        times.append(None)
        if len(times) == 3:
            done.set()

    thread = PeriodicThread("test", work, chain(repeat(0.0, 3), repeat(3600.0)))
    thread.start()
    assert done.wait(300) and not thread.is_over
    thread.stop()
    assert thread.is_over and len(times) == 3


def test_one_that_never_started_can_be_stopped() -> None:
    thread = PeriodicThread("test", lambda: None, repeat(0.0))
    thread.stop()
    assert thread.is_over
