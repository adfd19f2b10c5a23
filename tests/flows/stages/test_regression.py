"""The nightly alarm: the sweeps that the chart learns from, and the effects of an alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

import nodesweep.flows.stages.regression
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RegressionEstablished
from nodesweep.flows.stages.regression import alarm_on_regression
from nodesweep.launch.registry import backend_of
from nodesweep.scaling import names
from nodesweep.scaling.instances.model import ComparedVariant, InstanceComparison
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import ScalingReport, analyse
from nodesweep.scaling.trend.chart import LEARNING_SWEEPS
from nodesweep.scaling.trend.history import HistoryError, history_frame, write_history
from nodesweep.scaling.trend.trend_verdict import TrendVerdict

TIMES = (100.0, 100.5, 101.0, 101.5, 102.0)


class Bucket:
    """The history's files, in place of the tasks that read and write the bucket."""

    def __init__(self, config: BenchmarkConfig) -> None:
        self.config, self.store = config, backend_of(config.platform).store
        self.histories: dict[str, bytes] = {}
        self.kept: dict[str, bytes] = {}
        self.events: list[tuple[str, str, str]] = []
        self.artifacts: list[str] = []

    def sweep(self, day: int) -> str:
        return names.sweep_id(self.config, datetime(2026, 1, day, 3, tzinfo=UTC))

    def night(self, day: int, slower: float = 1.0, **changes: Any) -> ScalingReport:
        """Store the report of a day's sweep with five runs each on 1 and 2 nodes; those on 2 take
        `slower` times as long."""
        report = report_of(self.config, self.sweep(day), slower, **changes)
        self._keep(history_frame(report))
        return report

    def _keep(self, frame: pd.DataFrame) -> None:
        uri = f"s3://bucket/history/v1/benchmark=bench/{frame['sweep_id'][0]}.parquet"
        self.histories[uri] = write_history(frame, self.config.name)

    def learn(self, nights: int = LEARNING_SWEEPS, **changes: Any) -> int:
        """Store that many equal nights; return the following day."""
        frame = history_frame(self.night(1, **changes))
        for day in range(2, nights + 1):
            self._keep(frame.assign(sweep_id=self.sweep(day)))
        return nights + 1

    def alarm(
        self, day: int, slower: float = 1.0, reference: str | None = None, **changes: Any
    ) -> TrendVerdict | None:
        """Judge tonight's sweep with a tolerance of 5%."""
        report = self.night(day, slower, **changes)
        return alarm_on_regression(self.store, self.config.name, report, 0.05, reference)


def report_of(
    config: BenchmarkConfig, sweep: str, slower: float, lost: int | None = None, **changes: Any
) -> ScalingReport:
    facts: dict[str, Any] = {
        "platform_kind": "aws",
        "instance_type": "ml.m5.xlarge",
        "region": "us-east-1",
        **changes,
    }
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=repeat, attempt=1,
            job_name=names.job_name(sweep, nodes, repeat, 1, "abcd"),
            status="Failed" if nodes == lost else "Completed", train_clock="program",
            clocks=Clocks(train_seconds=seconds * (1 if nodes == 1 else slower / 2)), **facts,
        )
        for nodes in (1, 2)
        for repeat, seconds in enumerate(TIMES, start=1)
    ]  # fmt: skip
    provenance = {"image_uri": changes.get("image_uri", "image@sha256:1")}
    return analyse(
        sweep, config, None, outcomes, None, provenance, datetime(2026, 1, 20, tzinfo=UTC)
    )


@pytest.fixture
def bucket(
    make_config: Callable[..., BenchmarkConfig], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    made = Bucket(make_config(sweep={"node_counts": [1, 2], "repeats": 5}))
    fakes = {
        "read_history_of": lambda platform, benchmark: made.histories,
        "put_objects": lambda platform, objects: made.kept.update(objects),
        "publish_trend": lambda sweep, markdown: made.artifacts.append(markdown),
        "announce_regression": lambda *event: made.events.append(event),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(nodesweep.flows.stages.regression, name, fake)
    yield made


def test_nights_that_are_learnt_from_say_that_they_cannot_alarm(bucket: Bucket) -> None:
    for day in range(1, LEARNING_SWEEPS + 1):
        verdict = bucket.alarm(day)
        assert verdict is not None and verdict.headline == "Cannot alarm."
        assert f"needs {LEARNING_SWEEPS} sweeps and has {day};" in verdict.counts[0].reason
    assert not bucket.events


def test_equal_night_raises_no_alarm_and_the_verdict_is_kept(bucket: Bucket) -> None:
    verdict = bucket.alarm(bucket.learn())
    assert verdict is not None and not verdict.alarms and verdict.tolerance == 0.05
    [(key, body)] = bucket.kept.items()
    assert key.endswith("/trend.json") and TrendVerdict.model_validate_json(body) == verdict
    assert verdict.headline in bucket.artifacts[0] and not bucket.events


def test_slow_night_is_an_event_and_a_failure(bucket: Bucket) -> None:
    day = bucket.learn()
    with pytest.raises(RegressionEstablished, match=r"^on 2 nodes.* 5%"):
        bucket.alarm(day, slower=1.2)
    [(sweep, before, message)] = bucket.events
    assert (sweep, before) == (bucket.sweep(day), bucket.sweep(1))
    assert "slower" in message and "2 nodes" in bucket.artifacts[0]


def test_slow_night_after_an_improvement_is_compared_with_the_level_since(bucket: Bucket) -> None:
    day = bucket.learn()
    for night in range(day, day + LEARNING_SWEEPS):
        bucket.night(night, slower=0.7)
    with pytest.raises(RegressionEstablished):
        bucket.alarm(day + LEARNING_SWEEPS, slower=0.9)
    assert bucket.events[0][1] == bucket.sweep(day)


def test_alarm_goes_on_while_it_is_slow_and_ends_with_the_first_good_night(bucket: Bucket) -> None:
    day = bucket.learn()
    for night in range(day, day + 4):
        with pytest.raises(RegressionEstablished):
            bucket.alarm(night, slower=1.2)
    verdict = bucket.alarm(day + 4)
    assert verdict is not None and not verdict.alarms


def test_creep_alarms_though_no_night_is_far_from_the_one_before(bucket: Bucket) -> None:
    day = bucket.learn()
    with pytest.raises(RegressionEstablished):
        for night in range(12):
            bucket.alarm(day + night, slower=1.01 ** (night + 1))
    assert len(bucket.events) == 1


def test_node_count_at_which_nothing_completed_any_more_alarms_from_the_second_night_on(
    bucket: Bucket,
) -> None:
    """This includes N0, without which the rest of the sweep has another baseline."""
    bucket.night(1)
    for day, lost in ((2, 2), (3, 1)):
        with pytest.raises(RegressionEstablished, match=rf"no completed run on {lost} nodes?$"):
            bucket.alarm(day, lost=lost)


def test_night_without_any_run_alarms_where_an_earlier_one_had_some(bucket: Bucket) -> None:
    nothing = analyse(
        bucket.sweep(2), bucket.config, None,
        [JobOutcome(nodes=1, repeat=1, attempt=1, job_name="x", status="Failed",
                    platform_kind="aws", instance_type="ml.m5.xlarge")],
        None, {}, datetime(2026, 1, 20, tzinfo=UTC),
    )  # fmt: skip
    assert alarm_on_regression(bucket.store, bucket.config.name, nothing, 0.05) is None
    bucket.night(1)
    with pytest.raises(RegressionEstablished, match=r"no completed run on 1 node$"):
        alarm_on_regression(bucket.store, bucket.config.name, nothing, 0.05)
    assert bucket.events[0][1] == bucket.sweep(1)


def test_unreadable_and_later_files_are_left_out(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    day = bucket.learn()
    bucket.night(day + 5, slower=3.0)
    bucket.histories[f"s3://bucket/{bucket.sweep(day)[:-8]}00000000.parquet"] = b"PAR1"
    verdict = bucket.alarm(day)
    assert verdict is not None and verdict.sweep_id == bucket.sweep(day) and not verdict.alarms
    assert "left out" in caplog.text


def test_pinned_reference_is_what_the_level_is_learnt_from(bucket: Bucket) -> None:
    day = bucket.learn()
    for night in range(day, day + LEARNING_SWEEPS):
        bucket.night(night, slower=1.2)
    verdict = bucket.alarm(day + LEARNING_SWEEPS, slower=1.2, reference=bucket.sweep(day))
    assert verdict is not None and (verdict.pinned, verdict.alarms) == (True, ())
    with pytest.raises(RegressionEstablished):
        bucket.alarm(day + LEARNING_SWEEPS, slower=1.2)
    with pytest.raises(HistoryError, match="reference: other "):
        bucket.alarm(day + LEARNING_SWEEPS, reference="other")


def test_new_image_is_what_a_night_is_there_to_judge(bucket: Bucket) -> None:
    day = bucket.learn(image_uri="image@sha256:1")
    with pytest.raises(RegressionEstablished):
        bucket.alarm(day, slower=1.2, image_uri="image@sha256:2")


def test_other_conditions_start_a_new_trend_and_are_a_warning(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = bucket.alarm(bucket.learn(), slower=1.5, instance_type="ml.m5.2xlarge")
    assert verdict is not None and verdict.headline == "Cannot alarm."
    assert "new trend" in caplog.text and "5 earlier sweeps" in caplog.text
    assert not bucket.events


def test_of_several_types_the_recommended_one_alone_is_judged(bucket: Bucket) -> None:
    """Another type had runs at 2 nodes the night before; that this type has none is no change."""
    bucket.night(1, instance_type="ml.m5.4xlarge")
    tonight = report_of(bucket.config, bucket.sweep(2), 1.0, lost=2)
    comparison = InstanceComparison(
        instance_types=("ml.m5.xlarge", "ml.m5.4xlarge"), main="ml.m5.xlarge", arms=(),
        answers=(), prices={}, points_asked=0, points_done=0,
    )  # fmt: skip
    with pytest.raises(RegressionEstablished):
        alarm_on_regression(bucket.store, bucket.config.name, tonight, 0.05)
    of_types = tonight.model_copy(update={"instances": comparison})
    alarm_on_regression(bucket.store, bucket.config.name, of_types, 0.05)


def test_of_variants_the_recommended_one_alone_is_judged(bucket: Bucket) -> None:
    """Another variant of the same type had runs at 2 nodes the night before."""
    bucket.night(1, region="us-west-2")  # stands for conditions that the variant sets
    tonight = report_of(bucket.config, bucket.sweep(2), 1.0, lost=2)
    comparison = InstanceComparison(
        instance_types=("ml.m5.xlarge",) * 2, main="large", arms=(), answers=(), prices={},
        variants=(ComparedVariant(name="base", set={}), ComparedVariant(name="large", set={})),
        points_asked=0, points_done=0,
    )  # fmt: skip
    of_variants = tonight.model_copy(update={"instances": comparison})
    alarm_on_regression(bucket.store, bucket.config.name, of_variants, 0.05)
