"""Become a Prefect worker that runs a benchmark's flow once.

    python -m benchmarks.chaos.worker CONFIG

Creates the work pool, the deployment and the flow run, then turns into `prefect worker start
--run-once`, so that a signal to this process reaches the worker.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectAlreadyExists

from nodesweep.configs.load import load_config
from nodesweep.configs.section import WITH_SECRETS

_REPOSITORY = Path(__file__).resolve().parents[2]


def main(config_path: Path) -> None:
    """Schedule the flow run and become the worker.

    Pool and deployment belong to this run only, since others run in parallel.
    """
    own = f"chaos-{config_path.resolve().parent.name}"
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=own, type="process"))
    entrypoint = "nodesweep.flows.scaling_benchmark.scaling_benchmark"
    benchmark: Any = flow.from_source(source=str(_REPOSITORY), entrypoint=entrypoint)
    benchmark.deploy(
        name=own,
        work_pool_name=own,
        build=False,
        push=False,
        print_next_steps=False,
        enforce_parameter_schema=False,
    )
    parameters = {"preset": load_config(config_path).model_dump(mode="json", context=WITH_SECRETS)}
    run_deployment(f"scaling-benchmark/{own}", parameters=parameters, timeout=0)
    worker = [
        sys.executable,
        "-m",
        "prefect",
        "worker",
        "start",
        "--pool",
        own,
        "--type",
        "process",
        "--run-once",
    ]
    os.execv(sys.executable, worker)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
