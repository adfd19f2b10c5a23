from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import SweepNotFound, SweepNotNamed
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.outcome.outcome import Clocks, JobOutcome
from nodesweep.scaling.report import analyse
from nodesweep.tasks.sweeps.ids import claim_sweep_id
from nodesweep.tasks.sweeps.records import (
    Sweeps,
    add_to_provenance,
    begins_with_validation,
    latest_sweep,
    read_sweep_record,
    sweep_exists,
    unfinished_sweep,
    write_sweep_record,
)


def test_latest_sweep_is_the_youngest_of_the_same_config(
    aws: Callable[[str], Any],
    make_config: Callable[..., BenchmarkConfig],
    snapshot: SnapshotAssertion,
) -> None:
    s3, config = aws("s3"), make_config()
    s3.create_bucket(Bucket="bench-bucket")
    store = BucketStore(config.platform, client=s3)
    with pytest.raises(SweepNotFound) as refused:
        latest_sweep(Sweeps(store, config))
    assert str(refused.value) == snapshot
    sweeps = [names.sweep_id(config, datetime(2026, month, 1, tzinfo=UTC)) for month in (3, 11, 7)]
    other = names.sweep_id(make_config(sweep={"repeats": 2}), datetime(2026, 12, 1, tzinfo=UTC))
    for sweep in (*sweeps, other):
        store.put(names.sweep_config_key("nodesweep", sweep), b"{}")
    assert latest_sweep(Sweeps(store, config)) == sweeps[1]


def report_of(*points: tuple[int, int, str]) -> bytes:
    outcomes = [
        JobOutcome(
            nodes=nodes, repeat=repeat, attempt=attempt, job_name=f"job-{attempt}", status=status,
            platform_kind="aws", train_clock="program", clocks=Clocks(train_seconds=80.0),
        )
        for attempt, (nodes, repeat, status) in enumerate(points, start=1)
    ]  # fmt: skip
    report = analyse(
        "bench-20261122000000-01234567", None, None, outcomes, None, {}, datetime.now(UTC)
    )
    return names.pretty_json(report.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("report", "complete"),
    [
        (report_of((1, 1, "Completed"), (2, 1, "Completed")), True),
        (report_of((1, 1, "Completed"), (2, 1, "Failed"), (2, 1, "Completed")), True),
        (report_of((1, 1, "Completed"), (2, 1, "Failed")), False),
        (report_of((1, 1, "Completed")), False),
        (None, False),
        (b"{", False),
        (b"[]", False),
        (b'{"points": []}', False),
    ],
)
def test_sweep_is_finished_when_every_point_has_a_completed_run(
    store: Store, benchmark_config: BenchmarkConfig, report: bytes | None, complete: bool
) -> None:
    sweep = names.sweep_id(benchmark_config, datetime(2026, 11, 22, tzinfo=UTC))
    if report is not None:
        store.put(names.report_key(store.prefix, sweep, names.REPORT_JSON), report)
    assert Sweeps(store, benchmark_config).is_done(sweep) is complete


def test_resume_names_the_sweep_it_is_not_certain_of(
    store: Store, benchmark_config: BenchmarkConfig, snapshot: SnapshotAssertion
) -> None:
    """The younger run was killed before its sweep was recorded; then it is recorded, then
    finished.
    """
    older, younger = (
        claim_sweep_id(Sweeps(store, benchmark_config), datetime(2026, 11, 22, tzinfo=UTC), run)
        for run in ("older", "younger")
    )
    with pytest.raises(SweepNotNamed) as raised:
        latest_sweep(Sweeps(store, benchmark_config))
    assert str(raised.value) == snapshot
    assert older not in str(raised.value)
    assert unfinished_sweep(Sweeps(store, benchmark_config), excluding=older) is None
    store.put(names.sweep_config_key(store.prefix, older), b"{}")
    with pytest.raises(SweepNotNamed) as refused:
        latest_sweep(Sweeps(store, benchmark_config))
    assert str(refused.value) == snapshot
    assert unfinished_sweep(Sweeps(store, benchmark_config), excluding=younger) == older
    store.put(names.sweep_config_key(store.prefix, younger), b"{}")
    assert latest_sweep(Sweeps(store, benchmark_config)) == younger
    assert unfinished_sweep(Sweeps(store, benchmark_config), excluding="new") == younger
    finished = report_of((1, 1, "Completed"), (2, 1, "Completed"))
    store.put(names.report_key(store.prefix, younger, names.REPORT_JSON), finished)
    with pytest.raises(SweepNotNamed) as refused:
        latest_sweep(Sweeps(store, benchmark_config))
    assert str(refused.value) == snapshot
    assert unfinished_sweep(Sweeps(store, benchmark_config), excluding="new") is None


def test_record_comes_back_and_a_missing_one_is_named_by_its_place(store: Store) -> None:
    sweep = "bench-20261122000000-01234567"
    with pytest.raises(SweepNotFound, match=store.uri(names.sweep_config_key(store.prefix, sweep))):
        read_sweep_record(store, sweep)
    assert not sweep_exists(store, sweep) and not begins_with_validation(store, sweep)
    job = names.validation_job_name(sweep, 1, "0123abcdef")
    store.put(names.validation_request_key(store.prefix, sweep, job), b"{}")
    assert begins_with_validation(store, sweep)
    record = {"schema_version": 1, "config": {}, "inputs": {}, "provenance": {}}
    write_sweep_record(store, sweep, record)
    assert sweep_exists(store, sweep) and not begins_with_validation(store, sweep)
    assert read_sweep_record(store, sweep) == record


def test_findings_are_recorded_though_the_record_cannot_be_read_at_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodesweep.aws.platform.SHORT_PAUSES_SECONDS", (0.0,))
    sweep, get, failures = "bench-20261122000000-01234567", store.get, iter([True])
    record = {"schema_version": 1, "config": {}, "inputs": {}, "provenance": {"image": "one"}}
    write_sweep_record(store, sweep, record)

    def unreliable(_: Store, key: str) -> bytes | None:
        if next(failures, False):
            raise EndpointConnectionError(endpoint_url="http://there:1")
        return get(key)

    monkeypatch.setattr(type(store), "get", unreliable)
    add_to_provenance(store, sweep, {"dataset_change": "deleted"})
    found = read_sweep_record(store, sweep)["provenance"]
    assert found == {"image": "one", "dataset_change": "deleted"}
