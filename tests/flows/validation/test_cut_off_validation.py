"""A run that ended before its sweep was recorded, while a Processing job validated its dataset.

A run that continues the sweep adopts that job and does not pay for a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.exceptions import CancelledRun

from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import (
    PreflightRefused,
    SweepNotFound,
    SweepNotNamed,
    ValidationJobFailed,
)
from nodesweep.flows.scaling_benchmark import BenchmarkRun, scaling_benchmark
from nodesweep.flows.stages import validation
from nodesweep.flows.stop import stop_sweep
from nodesweep.scaling import names
from tests.flows.simulated_sweep import begin_as, write_config
from tests.flows.validation.test_validation_on_spark import (
    answer,
    endless_program,
    failing,
    good,
    lines_of,
    processing_jobs,
    request_of,
    spark_config,  # noqa: F401  (a fixture)
    verdict_on,
)

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


@pytest.fixture
def cut_off(
    served: SimpleNamespace,
    spark_config: Configs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., tuple[BenchmarkConfig, str]]:
    """Return cut_off(day, …), which returns (config, sweep) of a run that died while its job waited
    for `go`."""

    def make(day: int, **sections: Any) -> tuple[BenchmarkConfig, str]:
        def die(*args: Any, **kwargs: Any) -> None:
            raise OSError("killed")

        def waiting(job: Any, node: Any, say: Any, stop: Any) -> None:
            say("waits")
            while not stop.wait(0.05):
                if served.go:
                    return answer(node, verdict_on(request_of(node), 3))
            return None

        served.go = False
        config = spark_config(waiting, **sections)
        sweep = names.sweep_id(config, datetime(2026, 12, day, tzinfo=UTC))
        with monkeypatch.context() as patched:
            patched.setattr("nodesweep.flows.stages.validation.watch_validation_job", die)
            with pytest.raises(OSError, match="killed"):
                begin_as(config, sweep)
        assert list(processing_jobs(served, sweep).values()) == ["InProgress"]
        return config, sweep

    return make


def test_resume_of_the_same_config_adopts_the_job_that_runs(
    served: SimpleNamespace, cut_off: Callable[..., tuple[BenchmarkConfig, str]]
) -> None:
    config, sweep = cut_off(1)
    with pytest.raises(PreflightRefused, match="a different config"):
        other = config.model_copy(update={"name": "another"})
        scaling_benchmark(other, sweep_id=sweep, resume=True)
    served.go = True
    result = scaling_benchmark(config, sweep_id=sweep, resume=True)
    assert result.sweep_id == sweep and result.missing_points == 0
    [(job, status)] = processing_jobs(served, sweep).items()
    assert status == "Completed"
    assert result.report.provenance["dataset_validation"]["job"] == job


def test_its_log_is_shown_while_it_runs_and_a_resume_without_an_id_finds_it(
    served: SimpleNamespace, cut_off: Callable[..., tuple[BenchmarkConfig, str]], tmp_path: Path
) -> None:
    # a config of its own, so that no other test's sweep is the latest
    config, sweep = cut_off(2, name="cut-off")
    place = ["--config", str(write_config(config, tmp_path))]
    shown = ["v1 algo-1 waits", "v1 algo-2 waits"]
    wait_until(lambda: sorted(lines_of(sweep, "--validation", *place)[1]) == shown)
    assert not (Path(config.report.directory) / sweep / "logs").exists(), "it has not ended"
    served.go = True
    assert scaling_benchmark(config, resume=True).sweep_id == sweep
    assert list(processing_jobs(served, sweep).values()) == ["Completed"]


def test_a_new_sweep_names_the_one_that_was_left(
    served: SimpleNamespace,
    cut_off: Callable[..., tuple[BenchmarkConfig, str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, left = cut_off(7, name="left")
    served.go = True
    new = names.sweep_id(config, datetime(2026, 12, 8, tzinfo=UTC))
    go_on = f"`nodesweep run CONFIG --resume {left}`"
    with caplog.at_level("WARNING", logger="nodesweep.flow"):
        with monkeypatch.context() as patched:
            patched.setattr(
                "nodesweep.tasks.sweeps.owner._LOST_SECONDS", -1.0
            )  # its last sign is old
            BenchmarkRun.of(config)._warn_of_unfinished_sweep(new)
        assert go_on in caplog.text and "s ago" not in caplog.text
        assert begin_as(config, new).sweep_id == new
    assert caplog.text.count("s ago") == 1 and caplog.text.count(go_on) == 2
    caplog.clear()
    begin_as(config, names.sweep_id(config, datetime(2026, 12, 9, tzinfo=UTC)))
    assert left not in caplog.text, "the latest one is done"


def test_what_was_stopped_is_not_gone_on_with(
    served: SimpleNamespace, cut_off: Callable[..., tuple[BenchmarkConfig, str]]
) -> None:
    config, sweep = cut_off(4, name="stopped-then")
    [job] = processing_jobs(served, sweep)
    assert stop_sweep(sweep, config) == [job]
    wait_until(lambda: processing_jobs(served, sweep) == {job: "Stopped"})
    with pytest.raises(SweepNotFound):
        scaling_benchmark(config, sweep_id=sweep, resume=True)
    with pytest.raises(SweepNotNamed):
        scaling_benchmark(config, resume=True)
    assert processing_jobs(served, sweep) == {job: "Stopped"}


def test_jobs_that_were_stopped_are_no_attempts(
    served: SimpleNamespace,
    spark_config: Configs,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted twice, with one attempt allowed: the third run still gets its verdict; a job
    that failed counts.
    """

    once = {"node_counts": [1], "max_attempts": 1}
    config = spark_config(endless_program, sweep=once)
    sweep = names.sweep_id(config, datetime(2026, 12, 5, tzinfo=UTC))
    real = validation.watch_validation_job

    def interrupted(platform: Any, sweep: str, job: str, *rest: Any) -> Any:
        if processing_jobs(served, sweep)[job] in ("Stopped", "Stopping"):
            return real(platform, sweep, job, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(validation, "watch_validation_job", interrupted)
        for number in range(1, 3):
            with pytest.raises(CancelledRun):
                begin_as(config, sweep)
            assert len(processing_jobs(served, sweep)) == number
    with pytest.raises(ValidationJobFailed):
        begin_as(spark_config(failing, sweep=once), sweep)
    statuses = sorted(processing_jobs(served, sweep).values())
    assert statuses == ["Failed", "Stopped", "Stopped"]
    with pytest.raises(ValidationJobFailed):
        begin_as(spark_config(good, sweep=once), sweep)
