"""A change of this machine's clock during a sweep moves no deadline; measured times are the
platform's."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest

import nodesweep.flows.report
import nodesweep.polling
from benchmarks.chaos.plan import UNDISTURBED, Moment
from benchmarks.chaos.proxy import Proxy
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from tests.flows.simulated_sweep import COMPLETED, held_jobs, ledger
from tests.flows.stages.test_lost_network import through

Configs = Callable[..., BenchmarkConfig]
Platform = Callable[..., Any]
HOUR_SECONDS = 3600.0
MAX_RUNTIME_SECONDS = 300
"""With the 600 s that a job has beyond it, a quarter of the jump."""
MODEL = {
    "t_compute_seconds": 100, "gradient_bytes": 0, "latency_seconds": 0, "noise_sigma": 0,
    "startup_seconds": 5, "download_seconds": 5, "setup_seconds": 0,
}  # fmt: skip


class MachineClock:
    """This machine's clock as seen by the flow's modules; the platform has another clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set_forward_seconds = 0.0
        machine = self

        class Datetime(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(seconds=machine.set_forward_seconds)

        for module in (nodesweep.polling, nodesweep.flows.report):
            monkeypatch.setattr(module, "datetime", Datetime)


@pytest.mark.usefixtures("prefect", "quiet")
@pytest.mark.parametrize(
    "jump_seconds", [HOUR_SECONDS, pytest.param(-HOUR_SECONDS, marks=pytest.mark.slow)]
)
def test_clock_that_is_set_by_an_hour_stops_no_job(
    simulated: Platform, sweep_config: Configs, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    """Set at the third description, while the first job trains; jobs may take 900 s, and take
    110 at most."""
    clock = MachineClock(monkeypatch)

    def strike(label: str, number: int, moment: Moment) -> bool:
        if (label, number) == ("DescribeTrainingJob", 3):
            clock.set_forward_seconds = jump_seconds
            let_go.set()
        return False

    with (
        simulated(model=MODEL, time_scale=0.02) as served,
        Proxy(served.endpoint, UNDISTURBED.call_fault, state_directory=served.state_dir) as proxy,
        held_jobs() as let_go,
    ):
        proxy.begin_try(strike)
        training = {"max_runtime_seconds": MAX_RUNTIME_SECONDS}
        sweep = {"node_counts": [1, 2], "queue_deadline_seconds": MAX_RUNTIME_SECONDS}
        began = time.monotonic()
        result = scaling_benchmark(
            sweep_config(through(proxy, served), training=training, sweep=sweep)
        )
        assert ledger(served) == COMPLETED[:2]
    assert clock.set_forward_seconds == jump_seconds
    assert time.monotonic() - began < HOUR_SECONDS, "no wait is longer by the jump"
    seconds = [point.clocks.train_seconds for point in result.report.points]
    assert seconds == pytest.approx([100, 50], rel=0.05), "of the platform's clock"
