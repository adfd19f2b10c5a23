"""`python -m nodesweep.infra.worker deploy`, which both `make up` and compose.yaml's `deploy`
run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prefect.utilities.schema_tools.validation import ValidationError, validate

from nodesweep.cli import processes
from nodesweep.configs.allowed import LISTS
from nodesweep.infra.worker import deployments
from nodesweep.infra.worker.deployments import DeployError, wait_for_server

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = "http://127.0.0.1:1/api"


def test_server_that_has_ended_is_not_waited_for() -> None:
    with pytest.raises(DeployError, match=NOWHERE):
        wait_for_server(NOWHERE, lambda: False)


def test_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "SERVER_START_SECONDS", 0.1)
    with pytest.raises(DeployError, match=NOWHERE):
        wait_for_server(NOWHERE)


def test_refused_command_is_named_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments.sys, "executable", "/bin/false")
    with pytest.raises(
        DeployError, match=r"`prefect work-pool create nodesweep --type process .*`"
    ):
        deployments.deploy({})


def test_server_that_gets_nowhere_is_not_waited_for() -> None:
    reasons = iter([None, "after 60 s without progress"])
    with pytest.raises(DeployError, match=f"{NOWHERE} .*60 s"):
        wait_for_server(NOWHERE, problem=lambda: next(reasons))


def test_command_that_gets_nowhere_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(deployments.sys, "executable", str(program))
    monkeypatch.setattr(processes, "STILL_SECONDS", 0.2)
    with pytest.raises(DeployError, match=r"`prefect work-pool create "):
        deployments.deploy({"PATH": "/usr/bin:/bin"})


def test_command_asks_for_the_servers_address() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "nodesweep.infra.worker", "deploy"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1 and "PREFECT_API_URL" in done.stderr


TEMPLATE = json.loads(deployments.POOL_TEMPLATE.read_text())["variables"]


def test_deployments_of_prefect_yaml_fit_the_pools_template() -> None:
    pool = yaml.safe_load((ROOT / "prefect.yaml").read_text())["definitions"]["process_pool"]
    validate(pool["job_variables"], TEMPLATE, raise_on_error=True, preprocess=False)


@pytest.mark.parametrize(
    "variables",
    [
        *({"env": {name: "/"}} for name in (*LISTS, "PATH", "PYTHONPATH", "LD_PRELOAD")),
        {"command": "sh -c id"}, {"working_dir": "/etc"}, {"name": "x"}, {"labels": {"a": "b"}},
    ],
)  # fmt: skip
def test_server_refuses_a_run_that_brings_an_environment_or_a_command(
    variables: dict[str, object],
) -> None:
    with pytest.raises(ValidationError, match="was unexpected"):
        validate(variables, TEMPLATE, raise_on_error=True, preprocess=False)
