"""`nodesweep report --runs`: folders of runs on disk, and predictions from the report about
them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.commands.table import find_runs
from nodesweep.cli.main import main
from nodesweep.scaling.measured.runs import read_runs
from tests.nodesweep.scaling.analysis.test_step_budget import rank
from tests.plain import plain

pytestmark = pytest.mark.usefixtures("without_plots")
CLUSTERS = Path(__file__).parent / "data" / "clusters"
"""Files that small DDP programs wrote, unedited.

ray: Ray Train 2.60 on a cluster of two raylets, in two network namespaces of one machine: DDP on
one worker and on two, and Lightning on two.
pytorchjob, elastic, trainjob: processes in the same namespaces, one per pod, each with its own
disk, host name, and the variables that Kubeflow's controllers set (training-operator's envvar.go
and elastic.go, trainer's torch.go); no Kubernetes cluster was involved. In n2-r2, a rank raises.
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of three repeats on 1, 2 and 4 hosts, as nodesweep observed them."""
    start = 1.8e9
    for repeat, noise in enumerate((0.99, 1.0, 1.01), start=1):
        for nodes, (compute, exchange) in {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5)}.items():
            start += 1000
            each = compute * noise
            ranks = [
                rank(
                    number,
                    forward=each / 3,
                    backward=each * 2 / 3,
                    communication=exchange * noise,
                    start=1.0,
                )
                | {"node": f"gpu-{17 + number}"}
                for number in range(nodes)
            ]
            metrics = {
                "schema_version": 1,
                "train_seconds": each + exchange * noise + 1.0,
                "world": {"world_size": nodes},
                "run_start_unix_seconds": start,
                "steps": 20,
                "samples": {"processed": 320},
                "final_metric": {"name": "accuracy", "value": 0.5, "goal": "maximize"},
                "observed": {"starts_at": "data_request", "batch_size": 16 // nodes},
                "budget": ranks[:1],
            }
            folder = tmp_path / "runs" / f"n{nodes}-r{repeat}"
            write(folder / "metrics.json", metrics)
            for other in ranks[1:]:
                write(folder / f"nodesweep-budget-{other['rank']}.json", other)
    return tmp_path / "runs"


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def report(runs: Path, *options: str) -> Result:
    folder = str(runs.parent / "reports")
    return CliRunner().invoke(main, ["report", "--runs", str(runs), "--output", folder, *options])


def test_steps_waits_and_causes_are_in_the_report_and_predict_reads_it(
    runs: Path, snapshot: SnapshotAssertion
) -> None:
    write(runs / "n4-r4" / "slurm-77.out", "killed")
    done = report(runs, "--min-efficiency", "0.9")
    assert done.exit_code == 0, done.output
    found = json.loads((runs.parent / "reports" / "runs" / "report.json").read_text())
    assert [count["n"] for count in found["step_budget"]["counts"]] == [3, 3, 3]
    assert found["step_budget"]["losses"]
    assert [row["global_batch_size"] for row in found["summary"]] == [16, 16, 16]
    assert found["policy"] == "fixed_global"
    assert found["caveats"] == snapshot
    folder = str(runs.parent / "reports" / "runs")
    predicted = CliRunner().invoke(main, ["predict", folder, "--json"])
    assert predicted.exit_code == 0, predicted.output
    said = json.loads(predicted.stdout)
    assert [count["nodes"] for count in said["counts"]] == [8]
    answers = {each["criterion"]: each["answer"] for each in said["judged"][-1]["verdicts"]}
    assert answers["efficiency"] == "fail"  # by --min-efficiency of the report


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        (
            "ray",
            [(1, 1, "Completed", 1), (2, 2, "Completed", 2), (2, 2, "Completed", 2)],
        ),
        (
            "pytorchjob",
            [(1, 1, "Completed", 1), (2, 2, "Completed", 2), (2, None, "Failed", 0)],
        ),
        (
            "elastic",
            [(1, 2, "Completed", 2), (2, 4, "Completed", 4), (2, None, "Failed", 0)],
        ),
        ("trainjob", [(1, 1, "Completed", 1), (2, 2, "Completed", 2)]),
    ],
)
def test_files_of_other_launchers_are_read(
    name: str, jobs: list[tuple[int, int | None, str, int]], tmp_path: Path
) -> None:
    found = read_runs(find_runs(CLUSTERS / name))
    assert [
        (each.nodes, each.world_size, each.status, len(each.metric("budget") or ()))
        for each in found
    ] == jobs
    for each in found:
        nodes = {rank["node"] for rank in each.metric("budget") or ()}
        assert each.is_failure or nodes == {f"algo-{at + 1}" for at in range(each.nodes)}
    shutil.copytree(CLUSTERS / name, tmp_path / "runs")
    done = report(tmp_path / "runs")
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "reports" / "runs" / "report.json").read_text())
    completed = [nodes for nodes, _, status, _ in jobs if status == "Completed"]
    assert [(each["nodes"], each["n"]) for each in said["step_budget"]["counts"]] == [
        (1, completed.count(1)),
        (2, completed.count(2)),
    ]
    [doubling] = said["step_budget"]["losses"]
    causes = {each["cause"]: each["efficiency"] for each in doubling["causes"]}
    assert causes["communication"] > 0 and causes["waiting"] > 0
    folder = str(tmp_path / "reports" / "runs")
    predicted = CliRunner().invoke(main, ["predict", folder, "--nodes", "4", "--json"])
    assert predicted.exit_code == 0, predicted.output
    assert [each["nodes"] for each in json.loads(predicted.stdout)["counts"]] == [4]


def test_a_pod_whose_ranks_were_not_copied_is_a_caveat(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(CLUSTERS / "elastic", runs)

    def caveats() -> list[str]:
        assert report(runs).exit_code == 0
        said = json.loads((tmp_path / "reports" / "runs" / "report.json").read_text())
        return [each for each in said["caveats"] if "nodesweep-budget-*.json" in each]

    assert caveats() == []
    shutil.rmtree(runs / "n2-r1" / "job-worker-1")
    assert len(caveats()) == 1


def test_runs_of_several_launchers_can_be_repeats(tmp_path: Path) -> None:
    for name in ("ray", "pytorchjob", "trainjob"):
        shutil.copytree(CLUSTERS / name, tmp_path / name)
    found = read_runs(find_runs(tmp_path))
    assert [(each.nodes, each.repeat) for each in found] == [
        *((1, repeat) for repeat in (1, 2, 3)),
        *((2, repeat) for repeat in (1, 2, 3, 4, 5)),
    ]
    assert {each.batch_policy for each in found} == {"fixed_global"}


def test_a_goal_and_limits_of_the_command_line_apply(runs: Path) -> None:
    assert report(runs, "--goal", "minimize", "--tolerance", "0.1").exit_code == 0
    found = json.loads((runs.parent / "reports" / "runs" / "report.json").read_text())
    assert "limits" not in found["provenance"]


def test_runs_are_folders_at_any_depth_and_failed_ones_have_no_metrics(tmp_path: Path) -> None:
    for place in ("nodes=1/r1", "job-7/n2/output/data"):
        write(tmp_path / place / "metrics.json", "{}")
    write(tmp_path / "nodes=1" / "notes", "above runs")
    write(tmp_path / "job-8" / "n2" / "log", "no metrics")
    write(tmp_path / "job-8" / "n2" / "n2-logs" / "log", "within a run")
    write(tmp_path / "job-7" / "n2" / "output" / "data" / "n2" / "log", "within a run")
    write(tmp_path / "job-9" / "log", "named after no count")
    (tmp_path / "n8").mkdir()  # has not begun
    write(tmp_path / "nodes=1" / "r1" / "nodesweep-budget-1.json", "{}")
    write(tmp_path / "nodes=1" / "r1" / "nodesweep-budget-2.json", " " * 100_000)
    found = {run.place: (run.metrics, len(run.budgets)) for run in find_runs(tmp_path)}
    assert found == {
        "nodes=1/r1": (b"{}", 1),
        "job-7/n2/output/data": (b"{}", 0),
        "job-8/n2": (None, 0),
    }


def test_a_failed_run_is_counted_once_wherever_its_files_are(tmp_path: Path) -> None:
    for place in ("n1-r1", "n4/r1", "n2-r1/out", "n8/r1/out"):
        write(tmp_path / place / "metrics.json", "{}")
    for place in ("n4/r4", "n8/r2/logs", "n4-r4/logs", "n4-r4/out", "n16/r1", "n2-r1/logs"):
        write(tmp_path / place / "err.txt", "killed")
    (tmp_path / "n32" / "r1").mkdir(parents=True)  # empty
    failed = [run.place for run in find_runs(tmp_path) if run.metrics is None]
    assert failed == ["n16", "n4-r4", "n4/r4", "n8/r2"]


def test_runs_behind_links_or_too_deep_are_not_skipped_silently(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    runs = tmp_path / "runs"
    write(runs / "n1-r1" / "metrics.json", "{}")
    (runs / "n1-r1" / "a/b/c/d/e/f/g").mkdir(parents=True)  # its own affair
    (runs / "n1-r1" / "data").symlink_to(tmp_path)
    (runs / "latest").symlink_to("n1-r1")
    assert [run.place for run in find_runs(runs)] == ["n1-r1"]
    write(runs / "a/b/c/d/e/f/n2-r1" / "metrics.json", "{}")
    (tmp_path / "elsewhere").mkdir()
    (runs / "n4-r1").symlink_to(tmp_path / "elsewhere")
    (runs / "a" / "n8-r1").symlink_to("../../elsewhere")
    found = report(runs)
    assert found.exit_code == 2
    assert found.stderr == snapshot


def test_ranks_on_the_disks_of_other_pods_join_their_run(tmp_path: Path) -> None:
    def pod(place: str, *ranks: int, log: bool = False) -> None:
        (tmp_path / place).mkdir(parents=True)
        for rank_ in ranks:
            name = f"nodesweep-budget-{rank_}.json" if rank_ else "metrics.json"
            write(tmp_path / place / name, f'{{"rank": {rank_}}}')
        if log:
            write(tmp_path / place / "out.log", "done")

    pod("n2-r1/job-master-0", 0)
    pod("n2-r1/job-worker-0", 1, log=True)
    pod("n2-r2/job-master-0", log=True)  # its first pod failed
    pod("n2-r2/job-worker-0", 1)
    pod("job-node-0-0/n4-r1", 0, 1)
    pod("job-node-0-1/n4-r1", 2, 3)
    pod("n3/r1/node-0", 0)
    pod("n3/r1/node-1", 1)
    pod("n3/r1/node-2", log=True)  # its ranks were not split
    pod("n8-r1", 0)
    pod("n8-r1/pod-1", 1)
    pod("n16/r1", 0, 1)
    pod("n16/r2", 1)  # rank 0 failed
    pod("a/n5/pod-0", 0)  # either may be the run of pod-1
    pod("a/n5/pod-2", 0)
    pod("a/n5/pod-1", 1)
    found = {run.place: run for run in find_runs(tmp_path)}
    assert {place: len(run.budgets) for place, run in found.items() if run.metrics} == {
        "a/n5/pod-0": 0,
        "a/n5/pod-2": 0,
        "job-node-0-0/n4-r1": 3,
        "n16/r1": 1,
        "n2-r1/job-master-0": 1,
        "n3/r1/node-0": 1,
        "n8-r1": 1,
    }
    failed = {place for place, run in found.items() if not run.metrics}
    assert failed == {"n2-r2", "n16/r2", "a/n5/pod-1"}


def test_one_folder_that_is_a_run_itself(tmp_path: Path) -> None:
    write(tmp_path / "metrics.json", "{}")
    write(tmp_path / "n4" / "log", "within the run")
    assert [run.place for run in find_runs(tmp_path)] == ["."]


def test_refusals_are_bad_input(runs: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    def refused(folder: Path, *options: str) -> str:
        found = report(folder, *options)
        assert found.exit_code == 2 and "Traceback" not in found.output
        assert not (folder.parent / "reports").exists()
        return plain(found.stderr, folder=tmp_path)

    write(runs / "n1-r1" / "metrics.json", '{"train_seconds": 9')
    (runs / "n1-r2" / "metrics.json").unlink()
    (runs / "n1-r2" / "metrics.json").symlink_to("nowhere")
    os.truncate(runs / "n1-r3" / "metrics.json", 2**24)  # sparse: takes no disk
    (runs / "n2-r1" / "metrics.json").unlink()
    os.mkfifo(runs / "n2-r1" / "metrics.json")
    assert refused(runs) == snapshot
    assert refused(tmp_path / "none") == snapshot
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty") == snapshot
    for options in (["--region", "us-east-1"], ["--confirm-units"], ["--csv", "x"]):
        assert refused(runs, *options) == snapshot


def test_an_unreadable_file_is_bad_input(
    runs: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    opened = Path.open

    def denied(path: Path, *options: Any, **more: Any) -> Any:
        if path.name == "metrics.json" and path.parent.name == "n1-r1":
            # root may read everything, so it is raised here
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *options, **more)

    monkeypatch.setattr(Path, "open", denied)
    found = report(runs)
    assert found.exit_code == 2
    assert plain(found.stderr, folder=runs.parent) == snapshot


def test_runs_without_a_final_metric_have_nothing_for_a_goal_to_judge(
    runs: Path, snapshot: SnapshotAssertion
) -> None:
    for path in runs.rglob("metrics.json"):
        write(path, json.loads(path.read_text()) | {"final_metric": None})
    found = report(runs, "--goal", "maximize")
    assert found.exit_code == 2
    assert found.stderr == snapshot
