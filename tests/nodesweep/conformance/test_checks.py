"""Checks that no emulator can pass, on responses in the form of AWS's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.configs.load import load_config
from nodesweep.configs.platform import BatchConfig
from nodesweep.conformance import account, jobs, services
from nodesweep.conformance.check import Contradicted, NoEvidence, NotYet, Unmet
from nodesweep.conformance.trial import Observed
from nodesweep.polling import Clock
from nodesweep.scaling.job import JobStatus

REPOSITORY = Path(__file__).resolve().parents[3]
CONFIG = load_config(REPOSITORY / "configs" / "first_sweep.yaml")
ENDED = datetime(2026, 11, 27, 12, tzinfo=UTC)


def trial_of(
    client: Any = None, instance_type: str = "ml.m5.large", status: JobStatus | None = None,
    now: datetime = ENDED + timedelta(days=2),
) -> Any:  # fmt: skip
    """Return a trial in which every client is this one and every job has this status."""
    spec: Any = SimpleNamespace(name="job")
    return SimpleNamespace(
        config=CONFIG,
        platform=CONFIG.platform,
        instance=load_catalogue().get(instance_type),
        client=lambda service: client,
        clock=Clock(monotonic=lambda: 0.0, wait=lambda seconds: False, now=lambda: now),
        sweep="sweep",
        completed=lambda shape: Observed(spec, status or JobStatus("job", "completed")),
    )


def refusing(code: str) -> Callable[..., Any]:
    def refuse(**asked: Any) -> Any:
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {}}, "Call")

    return refuse


def resource(name: str, kind: str, state: str = "CREATE_COMPLETE") -> dict[str, str]:
    return {"LogicalResourceId": name, "ResourceType": kind, "ResourceStatus": state}


WHOLE = [resource(kind.rpartition(":")[2], kind) for kind in account._PARTS]


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (WHOLE, None),
        (WHOLE[1:], NoEvidence),
        ([*WHOLE, resource("Budget", "AWS::Budgets::Budget", "CREATE_FAILED")], Contradicted),
        ([*WHOLE, resource("Role", "AWS::IAM::Role", "UPDATE_ROLLBACK_COMPLETE")], Contradicted),
        ([*WHOLE, {"ResourceType": "AWS::Budgets::Budget"}], NoEvidence),
    ],
)
def test_stack(parts: list[dict[str, str]], error: type[Exception] | None) -> None:
    client = SimpleNamespace(describe_stack_resources=lambda **asked: {"StackResources": parts})
    if error is None:
        assert account.stack(trial_of(client))["Project"] == "AWS::CodeBuild::Project"
        return
    with pytest.raises(error):
        account.stack(trial_of(client))


def test_no_stack() -> None:
    client = SimpleNamespace(describe_stack_resources=refusing("ValidationError"))
    with pytest.raises(Unmet):
        account.stack(trial_of(client))


def test_another_buildspec_has_to_be_refused_and_is_stopped_if_it_is_not() -> None:
    refused = SimpleNamespace(start_build=refusing("AccessDeniedException"))
    assert "refused" in account.other_buildspec(trial_of(refused))
    with pytest.raises(Unmet):
        missing = SimpleNamespace(start_build=refusing("ResourceNotFoundException"))
        account.other_buildspec(trial_of(missing))
    stopped: list[str] = []
    accepting = SimpleNamespace(
        start_build=lambda **asked: {"build": {"id": "b1"}},
        stop_build=lambda id: stopped.append(id),
    )
    with pytest.raises(NoEvidence):
        account.other_buildspec(trial_of(accepting))
    assert stopped == ["b1"]


def price_list(*usages: str) -> dict[str, Any]:
    dimension = {"pricePerUnit": {"USD": "0.115"}}
    term = {"a": {"priceDimensions": {"b": dimension}}}
    return {
        "PriceList": [
            json.dumps(
                {"product": {"attributes": {"usagetype": usage}}, "terms": {"OnDemand": term}}
            )
            for usage in usages
        ]
    }


def test_price(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [price_list("USE1-Train:ml.m5.large"), price_list()]
    client = SimpleNamespace(get_products=lambda **asked: answers.pop(0))
    monkeypatch.setattr(account, "aws_client", lambda service, platform: client)
    assert account.price(trial_of())["usd_per_hour"] == 0.115
    with pytest.raises(NoEvidence):
        account.price(trial_of())


def test_credentials_of_another_account() -> None:
    answer = {"Account": "210987654321", "Arn": "arn:aws:sts::210987654321:assumed-role/r/me"}
    client = SimpleNamespace(get_caller_identity=lambda: answer)
    with pytest.raises(Contradicted):
        account.credentials(trial_of(client))
    answer["Account"] = CONFIG.platform.account_id
    assert account.credentials(trial_of(client)) == {"identity": "assumed-role"}


BILLED = JobStatus(
    "job", "completed", billable_seconds=360.0, nodes=1, ended_at=ENDED, retention="over"
)


def figures(*groups: tuple[str, float]) -> dict[str, Any]:
    def group(usage: str, hours: float) -> dict[str, Any]:
        metrics = {"UsageQuantity": hours, "UnblendedCost": hours * 0.115}
        return {
            "Keys": [usage],
            "Metrics": {name: {"Amount": str(each)} for name, each in metrics.items()},
        }

    return {"ResultsByTime": [{"Groups": [group(*each) for each in groups]}]}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (figures(("USE1-Train:ml.m5.large", 0.1), ("USE1-Host:ml.m5.large", 3.0)), None),
        (figures(("USE1-Train:ml.m5.large", 0.01)), Contradicted),
        (figures(("USE1-Train:ml.m5.xlarge", 0.1)), NoEvidence),
    ],
)
def test_cost_figures(
    answer: dict[str, Any], error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SimpleNamespace(get_cost_and_usage=lambda **asked: answer)
    monkeypatch.setattr(services, "aws_client", lambda service, platform: client)
    if error is None:
        found = services.cost_figures(trial_of(status=BILLED))
        assert found["node_hours"] == pytest.approx(0.1) and found["day"] == "2026-11-27"
        return
    with pytest.raises(error):
        services.cost_figures(trial_of(status=BILLED))


def test_cost_figures_of_the_type_that_the_job_got(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(get_cost_and_usage=lambda **asked: figures(("Train:ml.c5.large", 0.1)))
    monkeypatch.setattr(services, "aws_client", lambda service, platform: client)
    found = services.cost_figures(trial_of(status=replace(BILLED, instance_type="ml.c5.large")))
    assert found["node_hours"] == pytest.approx(0.1)


def test_cost_figures_are_not_there_yet_on_the_same_day() -> None:
    with pytest.raises(NotYet):
        services.cost_figures(trial_of(status=BILLED, now=ENDED + timedelta(hours=3)))
    with pytest.raises(NoEvidence):
        services.cost_figures(trial_of(status=replace(BILLED, billable_seconds=0.0)))


def metrics_of(monkeypatch: pytest.MonkeyPatch, **world: Any) -> None:
    """Have every job leave a metrics.json with this world."""
    backend = SimpleNamespace(read_metrics=lambda *asked: {"train_seconds": 9.0, "world": world})
    monkeypatch.setattr(jobs, "backend_of", lambda platform: backend)


def test_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unmet):
        jobs.nccl(trial_of())
    metrics_of(monkeypatch, world_size=2, backend="nccl")
    found = jobs.nccl(trial_of(instance_type="ml.g5.xlarge"))
    assert found["backend"] == "nccl" and found["accelerator"]
    metrics_of(monkeypatch, world_size=2, backend="gloo")
    with pytest.raises(Contradicted):
        jobs.nccl(trial_of(instance_type="ml.g5.xlarge"))


def test_two_nodes_that_did_not_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_of(monkeypatch, world_size=1, backend=None)
    with pytest.raises(Contradicted):
        jobs.two_nodes(trial_of())
    metrics_of(monkeypatch, world_size=2, backend="gloo")
    with pytest.raises(NoEvidence):  # no log
        jobs.two_nodes(trial_of())


def test_spot_that_bills_more_than_it_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_of(monkeypatch, world_size=1)
    status = JobStatus("job", "completed", spot=True, billable_seconds=90.0, training_seconds=80.0)
    with pytest.raises(Contradicted):
        jobs.spot(trial_of(status=status))
    assert jobs.spot(trial_of(status=replace(status, billable_seconds=20.0)))
    with pytest.raises(NoEvidence):
        jobs.spot(trial_of(status=replace(status, spot=False)))


def test_billed_seconds_beyond_the_jobs_life() -> None:
    life = {"created_at": ENDED - timedelta(seconds=100), "ended_at": ENDED}
    status = JobStatus("job", "completed", billable_seconds=90.0, **life)  # type: ignore[arg-type]
    assert jobs.billed(trial_of(status=status))["billed_seconds"] == 90.0
    with pytest.raises(Contradicted):
        jobs.billed(trial_of(status=replace(status, billable_seconds=120.0)))


@pytest.mark.parametrize("name", ["nodesweep-job", "AWSBatch0123-1"])
def test_a_job_of_a_queue_by_another_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "own_name", lambda backend, job_name: name)
    trial = trial_of()
    with pytest.raises(Unmet):
        jobs.batch_queue(trial)
    trial.platform = trial.platform.model_copy(update={"batch": BatchConfig(queue="queue")})
    with pytest.raises(Contradicted, match=name):
        jobs.batch_queue(trial)


def test_a_type_that_was_not_asked_for() -> None:
    trial = trial_of(status=JobStatus("job", "completed", instance_type="ml.c5.large"))
    with pytest.raises(Unmet):
        jobs.instance_fallbacks(trial)
    with_choice = CONFIG.training.model_copy(update={"instance_fallbacks": ("ml.m5.xlarge",)})
    trial.config = CONFIG.model_copy(update={"training": with_choice})
    with pytest.raises(Contradicted, match=r"ml\.c5\.large"):
        jobs.instance_fallbacks(trial)
    trial.completed = lambda shape: Observed(trial, JobStatus("job", "completed"))
    with pytest.raises(NoEvidence):
        jobs.instance_fallbacks(trial)


def test_the_bound_of_a_job_of_several_types_is_that_of_the_most_expensive() -> None:
    with_choice = CONFIG.training.model_copy(update={"instance_fallbacks": ("ml.m5.4xlarge",)})
    config = CONFIG.model_copy(update={"training": with_choice})
    assert "ml.m5.4xlarge" in jobs.ONE.bound(config)[1]
    assert jobs.STOPPED.bound(config) == jobs.STOPPED.bound(CONFIG)
