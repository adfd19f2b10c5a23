"""The nightly comparison: with which sweep, and what an established regression does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import flows.stages.regression
from configs.models import BenchmarkConfig
from flows.stages.regression import alarm_on_regression, last_good_report
from scaling import names
from scaling.outcome.outcome import Clocks, JobOutcome
from scaling.report import ScalingReport, analyse
from scaling.trend.compare import compare
from tasks.errors import RegressionEstablished

TIMES = (100.0, 100.5, 101.0, 101.5, 102.0)


class Bucket:
    """The sweeps' report files; stands for the tasks that list, read and write them."""

    def __init__(self, config: BenchmarkConfig) -> None:
        self.config = config
        self.files: dict[tuple[str, str], bytes] = {}
        self.events: list[tuple[str, str, str]] = []
        self.artifacts: list[str] = []

    def sweep(self, day: int) -> str:
        return names.sweep_id(self.config, datetime(2026, 1, day, 3, tzinfo=UTC))

    def night(self, day: int, slower: float = 1.0, **changes: Any) -> ScalingReport:
        """The report of that day's sweep, kept: five runs each at 1 and 2 nodes, the latter
        `slower` times as long.
        """
        report = report_of(self.config, self.sweep(day), slower, **changes)
        self.files[report.sweep_id, names.REPORT_JSON] = names.pretty_json(report.to_dict())
        return report

    def keep(self, platform: Any, objects: dict[str, bytes]) -> None:
        for key, body in objects.items():
            sweep, _, name = key.split("/")[-3:]
            self.files[sweep, name] = body


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
        "list_sweeps_of": lambda config: sorted({sweep for sweep, _ in made.files}),
        "read_report_file": lambda platform, sweep, name: made.files.get((sweep, name)),
        "put_objects": made.keep,
        "publish_comparison": lambda sweep, markdown: made.artifacts.append(markdown),
        "announce_regression": lambda *event: made.events.append(event),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(flows.stages.regression, name, fake)
    yield made


def test_first_night_has_nothing_to_be_compared_with(bucket: Bucket) -> None:
    assert alarm_on_regression(bucket.config, bucket.night(1), 0.05) is None
    assert not bucket.events and not bucket.artifacts


def test_equal_nights_raise_no_alarm(bucket: Bucket) -> None:
    bucket.night(1)
    comparison = alarm_on_regression(bucket.config, bucket.night(2), 0.05)
    assert comparison is not None and not comparison.regressions
    assert bucket.artifacts and not bucket.events
    assert (bucket.sweep(2), names.COMPARISON_JSON) in bucket.files


def test_established_regression_is_an_event_and_a_failure(bucket: Bucket) -> None:
    bucket.night(1)
    with pytest.raises(RegressionEstablished, match=r"by more than 5% at node counts \[2\]"):
        alarm_on_regression(bucket.config, bucket.night(2, slower=1.2), 0.05)
    [(sweep, before, message)] = bucket.events
    assert (sweep, before) == (bucket.sweep(2), bucket.sweep(1))
    assert "slower" in message and bucket.artifacts


def test_difference_within_the_tolerance_is_none(bucket: Bucket) -> None:
    bucket.night(1)
    assert alarm_on_regression(bucket.config, bucket.night(2, slower=1.2), 0.3) is not None
    assert not bucket.events


def test_node_count_at_which_nothing_completed_any_more_is_a_regression_too(bucket: Bucket) -> None:
    bucket.night(1)
    with pytest.raises(RegressionEstablished, match=r"no completed run at \[2\]"):
        alarm_on_regression(bucket.config, bucket.night(2, lost=2), 0.05)


def test_regressed_night_does_not_become_the_reference(bucket: Bucket) -> None:
    """Else the third night, just as slow, would pass."""
    bucket.night(1)
    for day in (2, 3):
        with pytest.raises(RegressionEstablished):
            alarm_on_regression(bucket.config, bucket.night(day, slower=1.2), 0.05)
    assert [before for _, before, _ in bucket.events] == [bucket.sweep(1), bucket.sweep(1)]


def test_incomplete_and_unreadable_nights_are_passed_over(bucket: Bucket) -> None:
    bucket.night(1)
    bucket.night(2, lost=2)
    bucket.files[bucket.sweep(3), names.REPORT_JSON] = b"{}"
    bucket.night(4)
    bucket.files[bucket.sweep(4), names.COMPARISON_JSON] = b'{"rows": [}'
    found = last_good_report(bucket.config, bucket.sweep(5))
    assert found is not None and found.sweep_id == bucket.sweep(1)


def test_only_earlier_sweeps_count(bucket: Bucket) -> None:
    for day in (1, 2, 3):
        bucket.night(day)
    found = last_good_report(bucket.config, bucket.sweep(2))
    assert found is not None and found.sweep_id == bucket.sweep(1)
    assert last_good_report(bucket.config, bucket.sweep(1)) is None


def test_last_improvement_is_a_good_night(bucket: Bucket) -> None:
    first, second = bucket.night(1, slower=1.2), bucket.night(2)
    bucket.files[second.sweep_id, names.COMPARISON_JSON] = (
        compare(first, second).model_dump_json().encode()
    )
    found = last_good_report(bucket.config, bucket.sweep(3))
    assert found is not None and found.sweep_id == bucket.sweep(2)


def test_new_image_is_what_a_night_is_there_to_judge(bucket: Bucket) -> None:
    bucket.night(1, image_uri="image@sha256:1")
    assert (
        alarm_on_regression(bucket.config, bucket.night(2, image_uri="image@sha256:2"), 0.05)
        is not None
    )


def test_other_conditions_are_a_warning_and_no_alarm(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.night(1)
    night = bucket.night(2, slower=1.5, instance_type="ml.m5.2xlarge")
    assert alarm_on_regression(bucket.config, night, 0.05) is None
    assert "is not compared with" in caplog.text and not bucket.events
