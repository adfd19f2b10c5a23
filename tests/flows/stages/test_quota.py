"""Slots of a real Prefect server's global concurrency limit, one per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

import nodesweep.flows.stages.sweep
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import PreflightRefused, QuotaReached
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.tasks.jobs.quota import NodeSlots, check_limit

LIMIT = "test-instances"


@pytest.fixture
def limit_of_four(prefect: None) -> Iterator[str]:
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=LIMIT, limit=4, active=True)
        )
        yield LIMIT
        client.delete_global_concurrency_limit_by_name(LIMIT)


def test_two_sweeps_never_hold_more_nodes_than_the_limit(limit_of_four: str) -> None:
    first, second = NodeSlots(limit_of_four), NodeSlots(limit_of_four)
    first.take("a", 3)
    first.take("a", 3)  # adopted again: it holds its slots already
    with pytest.raises(QuotaReached, match=r"b: 2 slots .* test-instances "):
        second.take("b", 2)
    second.take("c", 1)
    first.release("a")
    second.take("b", 2)
    first.release_all()
    second.release_all()
    second.release("unknown")
    first.take("d", 4)
    first.release_all()


def test_slots_that_cannot_be_given_back_are_left_to_their_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tests/production/test_renewals.py returns slots to a restarted server."""

    @contextmanager
    def lost(*_: object, **__: object) -> Iterator[None]:
        yield
        raise ConnectionError("the server is gone")

    monkeypatch.setattr("nodesweep.tasks.jobs.quota.concurrency", lost)
    slots = NodeSlots(LIMIT)
    slots.take("a", 2)
    slots.release("a")
    slots.take("a", 2)  # it holds none any more
    slots.release_all()


def test_a_sweep_without_a_limit_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodesweep.tasks.jobs.quota.concurrency", None)
    NodeSlots(None).take("a", 99)
    check_limit(None, 99)


def test_a_limit_that_cannot_work_is_refused_before_anything_is_sent(limit_of_four: str) -> None:
    check_limit(limit_of_four, 4)
    with pytest.raises(PreflightRefused, match=r"test-instances has 4 slots.* 8"):
        check_limit(limit_of_four, 8)
    with pytest.raises(PreflightRefused, match="prefect gcl create nowhere --limit INSTANCES"):
        check_limit("nowhere", 1)


def test_a_sweep_holds_its_jobs_nodes_and_gives_them_back(
    limit_of_four: str,
    served: SimpleNamespace,
    pipeline_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    watch = nodesweep.flows.stages.sweep.watch_training_jobs

    def spy(*arguments: object) -> object:
        with get_client(sync_client=True) as client:
            taken.append(client.read_global_concurrency_limit_by_name(LIMIT).active_slots)
        return watch(*arguments)

    monkeypatch.setattr(nodesweep.flows.stages.sweep, "watch_training_jobs", spy)
    sweep = {
        "node_counts": [1, 4],
        "max_parallel_jobs": 1,
        "concurrency_limit": LIMIT,
        "order": "ascending",
    }
    scaling_benchmark(pipeline_config("scaling", sweep=sweep))
    assert taken == [1, 4]
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limit_by_name(LIMIT).active_slots == 0
