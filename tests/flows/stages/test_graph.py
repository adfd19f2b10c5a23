"""A stage as a task run of Prefect."""

from __future__ import annotations

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from flows.stages.graph import in_stage


@task(name="looked", task_run_name="looked")
def look() -> int:
    return 7


@pytest.mark.usefixtures("prefect")
@pytest.mark.prefect_events
def test_a_stage_that_fails_takes_nothing_back_that_was_done_in_it() -> None:
    @flow(name="of-one-stage", flow_run_name="of-one-stage")
    def run() -> None:
        def fail() -> None:
            assert look() == 7
            raise ValueError("boom")

        in_stage("report", fail)

    with pytest.raises(ValueError, match="boom"):
        run()
    with get_client(sync_client=True) as client:
        named = FlowRunFilter(name=FlowRunFilterName(any_=["of-one-stage"]))
        runs = client.read_task_runs(flow_run_filter=named)
    states = {run.name: run.state and run.state.name for run in runs}
    assert states == {"looked": "Completed", "report": "Failed"}
