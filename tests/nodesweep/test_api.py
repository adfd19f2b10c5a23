"""nodesweep as a library does what docs/python.md promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

import nodesweep
from nodesweep.cli.commands.plan import plan_of, requests_of
from nodesweep.cli.main import main
from nodesweep.configs.load import ConfigError
from nodesweep.errors import PreflightRefused
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling.report.frames import SUMMARY
from nodesweep.scaling.report.points_csv import render_csv
from nodesweep.tasks.report.history import put_history
from tests.nodesweep.cli.test_compare_history import AFTER, BEFORE, body_of, bucket, report_of

__all__ = ["bucket"]
REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "tests/nodesweep/scaling/golden/reference.json"
PAGE = (REPOSITORY / "docs" / "python.md").read_text()
NOTEBOOK = REPOSITORY / "examples" / "read_a_report.ipynb"


def test_it_has_what_the_page_names() -> None:
    named = set(re.findall(r"^\| `nodesweep\.(\w+)", PAGE, re.M))
    assert named | {"Plan", "Report"} == set(nodesweep.__all__)
    assert all(getattr(nodesweep, name).__doc__ for name in nodesweep.__all__)
    with pytest.raises(AttributeError, match="reprot"):
        _ = nodesweep.reprot


def test_summary_of_the_reference_result() -> None:
    frame = nodesweep.read_report(REFERENCE).summary()
    assert list(frame.columns) == list(SUMMARY)
    assert list(frame["nodes"]) == [1, 2, 4, 8]
    assert list(frame["speedup"].round(1)) == [1.0, 1.8, 3.7, 7.3]
    assert frame["train_seconds"].dtype == "Float64" and frame["total_usd"].isna().all()
    assert pandas.isna(frame.loc[0, "doubling_ratio"])


def test_summary_has_both_ends_of_every_interval() -> None:
    report = nodesweep.Report(report_of(BEFORE))
    row = report.summary().set_index("nodes").loc[2]
    for name in ("train_seconds", "speedup", "efficiency"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    assert row["runs"] == 5


def test_points_are_those_of_points_csv(tmp_path: Path) -> None:
    data = report_of(BEFORE)
    frame = nodesweep.Report(data).points()
    (tmp_path / "points.csv").write_text(render_csv(data))
    read = pandas.read_csv(tmp_path / "points.csv")
    assert list(frame.columns) == list(read.columns)
    assert list(frame["train_seconds"]) == list(read["train_seconds"])
    assert frame.dtypes["used"] == "boolean" and frame.dtypes["world_size"] == "Int64"
    assert frame.dtypes["reason"] == "string" and frame["reason"].isna().all()


def test_plot_is_a_figure_of_matplotlib() -> None:
    from matplotlib.figure import Figure

    report = nodesweep.read_report(REFERENCE)
    assert isinstance(report.plot("speedup"), Figure)
    with pytest.raises(ValueError, match=r"'phases' .* speedup, eff"):
        report.plot("phases")


def test_notebook_shows_headline_and_rows() -> None:
    shown = nodesweep.read_report(REFERENCE)._repr_html_()
    assert "8 nodes" in shown and shown.count("<tr") == 5


def test_plan_lists_the_runs_and_the_cost_bound() -> None:
    config = nodesweep.load_config("search_mlp_p3", ["sweep.repeats=2"])
    plan = nodesweep.plan(config)
    frame = plan.points()
    assert sorted(frame["nodes"]) == [1, 1, 2, 2, 4, 4, 8, 8]
    assert frame.dtypes["world_size"] == "Int64" and frame.dtypes["learning_rate"] == "Float64"
    assert set(frame["instance_type"]) == {"ml.p3.16xlarge"} and "variant" not in frame
    assert plan.cost_bound_usd is not None and plan.cost_bound_usd > 0


def test_a_plan_has_no_run_of_a_count_that_is_only_predicted() -> None:
    config = nodesweep.load_config(
        "search_mlp_p3",
        ["sweep.repeats=2", "sweep.design=predict", "training.instance_type=ml.c5.9xlarge"],
    )
    assert sorted(nodesweep.plan(config).points()["nodes"]) == [1, 1, 2, 2]
    requests = requests_of(config, plan_of(config)).requests
    assert {each["ResourceConfig"]["InstanceCount"] for each in requests} == {1, 2}


def test_a_plan_of_variants_names_them() -> None:
    frame = nodesweep.plan(nodesweep.load_config("examples/variants_p4d")).points()
    assert {"base", "bf16-large"} < set(frame["variant"]) and "instance_type" not in frame


def test_a_plan_imports_no_library_of_tables_or_plots() -> None:
    code = (
        "import sys, nodesweep; nodesweep.plan(nodesweep.load_config('local'));"
        "print({'pandas', 'pyarrow', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_bad_configs_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.node_counts"):
        nodesweep.load_config("local", ["sweep.node_counts=[0]"])
    starter = {"training.source_dir": str(tmp_path), "training.entry_point": "setup.py"}
    (tmp_path / "setup.py").write_text("print('hello')")
    config = nodesweep.load_config("own_script", [f"{k}={v}" for k, v in starter.items()])
    with pytest.raises(PreflightRefused, match=r"setup\.py"):
        nodesweep.plan(config)


def test_history_has_every_run_of_the_sweeps(
    bucket: Any, platform: Any, raw_config: dict[str, Any], tmp_path: Path
) -> None:
    for sweep in (BEFORE, AFTER):
        put_history(BucketStore(platform, client=bucket), [report_of(sweep)], "bench")
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(raw_config))
    config = nodesweep.load_config(tmp_path / "bench.yaml")
    frame = nodesweep.history(config, "bench")
    assert frame.groupby("sweep_id").size().to_dict() == {BEFORE: 10, AFTER: 10}
    assert frame["train_seconds"].notna().all()


def test_report_is_read_by_folder_file_and_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports" / BEFORE
    folder.mkdir(parents=True)
    (folder / "report.json").write_bytes(body_of(report_of(BEFORE)))
    monkeypatch.chdir(tmp_path)
    for named in (folder, str(folder / "report.json"), BEFORE, "latest"):
        assert nodesweep.read_report(named).sweep_id == BEFORE


@pytest.mark.usefixtures("without_plots")
def test_notebook_runs_from_start_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(command: list[str], check: bool, stdout: int) -> None:
        assert command[:3] == [sys.executable, "-m", "nodesweep"]
        main(command[3:], standalone_mode=False)

    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    scope: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), scope)
    assert list(scope["summary"]["nodes"]) == [1, 2, 4, 8]
    assert scope["figure"].axes
