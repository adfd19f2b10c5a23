"""A Batch queue that could not run the sweep's jobs is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from infra.local.tests.platform_client import made_queue, serve_platform
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.launch.sagemaker.preflight.batch_queue import QueueResponse, judge_queue
from nodesweep.scaling.rules.rule import Findings
from tests.nodesweep.launch.sagemaker.preflight.questions import asking, clients, question

Configs = Callable[..., BenchmarkConfig]
POLICY = "arn:aws:batch:us-east-1:123456789012:scheduling-policy/fair"
ask_queue = asking("the Batch queue")


@pytest.fixture
def judged(make_config: Configs) -> Callable[..., Findings]:
    """Return a function that judges a queue for jobs of up to 4 nodes."""

    def judge(
        share: str | None = None, environment: dict[str, Any] | None = None, **members: Any
    ) -> Findings:
        config = make_config(platform={"batch": {"queue": "q", "share_identifier": share}})
        queue = {
            "jobQueueName": "q",
            "jobQueueType": "SAGEMAKER_TRAINING",
            "state": "ENABLED",
            "status": "VALID",
            **members,
        }
        limit = {"maxCapacity": 4, "capacityUnit": "NUM_INSTANCES"}
        used = {"serviceEnvironmentName": "env", "state": "ENABLED", "capacityLimits": [limit]}
        response = QueueResponse(queue, [{**used, **(environment or {})}])
        return judge_queue(question(config, clients(), peak_nodes=4).facts, response)

    return judge


def test_queue_with_room_for_the_largest_job_passes(judged: Callable[..., Findings]) -> None:
    assert judged() == Findings()
    assert judged(share="a", schedulingPolicyArn=POLICY) == Findings()


@pytest.mark.parametrize(
    "members",
    [
        {"jobQueueType": "ECS"},
        {"jobQueueType": None},
        {"state": "DISABLED"},
        {"status": "DELETING"},
        {"schedulingPolicyArn": POLICY},
        {"share": "a"},
        {"environment": {"state": "DISABLED"}},
        {"environment": {"capacityLimits": [{"maxCapacity": 1}]}},
        {"environment": {"capacityLimits": []}},
    ],
    ids=[
        "other type", "unknown type", "disabled", "deleted", "no share", "share without policy",
        "disabled environment", "small environment", "no capacity",
    ],
)  # fmt: skip
def test_queue_that_runs_no_job_is_refused(
    judged: Callable[..., Findings], members: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    found = judged(**members)
    assert found.notices == ()
    assert found.problems == snapshot


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with contextmanager(serve_platform)(tmp_path_factory.mktemp("platform")) as served:
        made_queue(served, "open", capacity=4)
        made_queue(served, "small", capacity=1)
        made_queue(served, "closed", capacity=4, state="DISABLED")
        yield served


@pytest.mark.parametrize("queue", ["open", "small", "closed", "absent"])
def test_queues_of_the_local_platform(
    platform: SimpleNamespace, make_config: Configs, queue: str, snapshot: SnapshotAssertion
) -> None:
    config = make_config(platform={"batch": {"queue": queue}})
    found = ask_queue(question(config, clients(batch=platform.batch)))
    assert found.notices == ()
    assert found.problems == snapshot


def test_without_a_queue_batch_is_not_asked(make_config: Configs) -> None:
    assert ask_queue(question(make_config(), clients())) == Findings()


def test_role_that_may_not_list_the_jobs_is_refused_before_they_are_submitted(
    platform: SimpleNamespace, make_config: Configs, snapshot: SnapshotAssertion
) -> None:
    denied = {"Error": {"Code": "AccessDeniedException", "Message": "no"}}

    class Batch:
        describe_job_queues = platform.batch.describe_job_queues

        def list_service_jobs(self, **query: Any) -> None:
            raise ClientError(denied, "ListServiceJobs")

    config = make_config(platform={"batch": {"queue": "open"}})
    found = ask_queue(question(config, clients(batch=Batch())))
    assert found.notices == ()
    assert found.problems == snapshot
