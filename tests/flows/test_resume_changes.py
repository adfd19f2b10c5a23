"""--resume reports what has changed since the start of the sweep, and sends nothing; --as-started
continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from nodesweep.cli.guard import explain
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import InputsChanged
from nodesweep.flows.report import recorded_inputs
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages.outcomes import PlannedSweep
from nodesweep.scaling.job import ResolvedInputs
from nodesweep.scaling.planning.plan import SweepPlan, plan_arms
from nodesweep.scaling.planning.queue import Submit, SweepQueue
from tests.configs.test_slurm import config as slurm_config
from tests.flows.simulated_sweep import measure, run_benchmark

pytestmark = pytest.mark.usefixtures("prefect")
Configs = Callable[..., BenchmarkConfig]


def jobs(served: SimpleNamespace, sweep: str) -> int:
    return len(
        served.sagemaker.list_training_jobs(NameContains=f"{sweep}-n")["TrainingJobSummaries"]
    )


def test_resume_stops_where_code_data_and_image_have_changed_or_are_gone_and_goes_on_as_started(
    served: SimpleNamespace, pipeline_config: Configs, tmp_path: Path
) -> None:
    program = tmp_path / "code" / "train.py"
    program.parent.mkdir()
    program.write_text("print('broken')\n")
    config = pipeline_config(
        "broken-at-2", sweep={"node_counts": [1, 2]}, training={"source_dir": "code"}
    )
    sweep = measure(config).sweep_id
    assert measure(config, resume=True).sweep_id == sweep, "nothing has changed"
    before = jobs(served, sweep)
    program.write_text("print('mended')\n")
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / "code" / name).touch()
    pd.DataFrame({"label": [7]}).to_parquet(tmp_path / "data" / "b.parquet")
    (tmp_path / "image" / "Dockerfile").write_text("FROM scratch\nLABEL other=1\n")
    with pytest.raises(InputsChanged) as raised:
        scaling_benchmark(config, sweep_id=sweep)
    message, code = explain(raised.value)
    assert code == 2 and jobs(served, sweep) == before
    for word in (
        " has changed: a.py, b.py, c.py and 1 more\n",
        "dataset.source: ",
        "image.context: ",
        "--as-started",
    ):
        assert word in message
    resumed = measure(config, resume=True, as_started=True)
    assert resumed.sweep_id == sweep and jobs(served, sweep) == before + 1
    for path in (program, *(tmp_path / "data").iterdir()):
        path.unlink()
    with pytest.raises(
        InputsChanged, match=r"train\.py [\s\S]*training\.source_dir[\s\S]*\*\.parquet"
    ):
        scaling_benchmark(config, sweep_id=sweep)


def test_a_cluster_has_the_same_jobs_after_a_change_of_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_order(planned: PlannedSweep, *_: Any) -> None:
        queue = SweepQueue(planned.config, planned.plan, planned.inputs, planned.render)
        order = queue.next_order()
        assert isinstance(order, Submit)
        request = planned.backend.launcher().render(order.spec)
        raise LookupError(order.job_name, str(request["script"]))

    def first_job(account: str, resume: bool) -> tuple[str, str]:
        platform = {"folder": str(tmp_path / "shared"), "account": account}
        own = {"platform": platform, "training": {"source_dir": str(tmp_path / "code")}}
        config = slurm_config(**own, report={"directory": str(tmp_path)})
        with pytest.raises(LookupError) as found:
            run_benchmark(config, resume=resume)
        name, script = found.value.args
        return name, script

    def plan(config: BenchmarkConfig, is_resume: bool) -> SweepPlan:
        return plan_arms(config, [config.node_type("fat-node")])

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    flow = "nodesweep.flows.scaling_benchmark"
    monkeypatch.setattr(f"{flow}.run_sweep", first_order)
    monkeypatch.setattr(f"{flow}.preflight", plan)
    name, script = first_job("physics", resume=False)
    assert "account=physics" in script
    assert first_job("other", resume=True) == (name, script.replace("=physics", "=other"))


def test_recorded_inputs_are_those_the_sweep_began_with_folders_and_all() -> None:
    recorded = {"image_uri": "image", "dataset_uri": "s3://b/d/", "source_uri": None}
    folders = {"inputs": {**recorded, "dataset_folders": ["train", "val"]}}  # JSON has lists
    assert recorded_inputs("s", folders) == ResolvedInputs(
        "s", "image", "s3://b/d/", None, ("train", "val")
    )
    assert recorded_inputs("s", {"inputs": recorded}) == ResolvedInputs(
        "s", "image", "s3://b/d/", None
    )
