"""The tables of docs/measured-tables.md are read, and the scripts of examples/measured_times
run."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.measured.columns import COLUMNS
from nodesweep.scaling.measured.table import MeasuredTableError, read_measured
from nodesweep.scaling.report.tables.summary import row_status

GUIDE = (Path(__file__).parents[4] / "docs" / "measured-tables.md").read_text()
SCRIPTS = Path(__file__).parents[4] / "examples" / "measured_times"


def blocks(language: str, after: str = "") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE[GUIDE.index(after) :], re.DOTALL)


@pytest.mark.parametrize("table", blocks("csv"))
def test_every_table_of_the_guide_is_read(table):
    assert len({outcome.nodes for outcome in read_measured(table)}) >= 2


def test_the_first_table_is_the_reference_row():
    reference = read_measured(blocks("csv")[0])
    assert {o.nodes: o.clocks.train_seconds for o in reference} == {
        1: 99 * 60,
        2: 55 * 60,
        4: 27 * 60,
        8: 13.5 * 60,
    }


def test_the_guide_describes_every_column():
    assert re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE) == list(COLUMNS)


def test_the_refusal_in_the_guide_is_what_is_said():
    with pytest.raises(MeasuredTableError) as caught:
        read_measured("nodes,repeat,train_seconds\n2,1,9\n1,1,-3\n")
    assert "\n".join("    " + line for line in f"nodesweep: {caught.value}".splitlines()) in GUIDE


def test_failed_and_stopped_rows_are_reported_as_the_guide_says(make_report):
    section = GUIDE[GUIDE.index("## Failed and interrupted runs") :]
    price = Price(instance_type=None, usd_per_hour=3.6)
    report = make_report(
        read_measured(blocks("csv", "## Failed and interrupted runs")[0]), price=price
    )
    assert [row_status(row) for row in report.summary] == [
        "ok",
        "1 failed",
        "failed (1)",
        "1 failed",
    ]
    assert "`1 failed`" in section and "`failed (1)`" in section
    [quoted] = [caveat for caveat in report.caveats if f"    {caveat}\n" in section]
    assert quoted.startswith("3 of 6 jobs ")
    stopped = report.points[-1]
    assert (stopped.status, stopped.clocks.train_seconds, stopped.used) == ("Stopped", 18.5, False)
    assert (stopped.failed_host, stopped.interruptions, stopped.spot) == (None, None, False)
    # 421 x 1 + 233 x 2 + 95 x 2 + 31 x 4 + 84 x 8 + 37 x 8 node-seconds at 0.001 USD each
    assert report.costs.spent_usd == pytest.approx(2.169)
    assert report.summary[-1].train.seconds == 66.02


@pytest.mark.parametrize("column", ["interruptions", "failed_host", "spot"])
def test_a_column_of_interruptions_or_failed_nodes_is_refused_as_the_guide_says(column):
    assert column not in COLUMNS
    with pytest.raises(MeasuredTableError) as refused:
        read_measured(f"nodes,train_seconds,{column}\n1,9,0\n2,5,1\n")
    assert f"'{column}'" in str(refused.value)


def command(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(folder: Path, program: list[str], **variables: str) -> str:
    command(folder, "nodesweep", 'echo "$@" > asked')
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **variables}
    subprocess.run(program, cwd=folder, env=environment, check=True, timeout=300)
    return (folder / "times.csv").read_text()


def test_the_torchrun_script_writes_a_table(tmp_path):
    (tmp_path / "hosts.txt").write_text("first\nsecond\n")
    command(tmp_path, "ssh", 'host=$2; shift 2; export host; exec bash -c "$*"')
    # Rank 0 is on the first host; the run on two nodes fails in its second repeat.
    command(
        tmp_path,
        "torchrun",
        '[[ $host == first && "$*" != *n2-r2* ]] && echo train_seconds 12.5; echo done',
    )
    table = run(tmp_path, ["bash", str(SCRIPTS / "torchrun.sh")], repeats="2", counts="1 2")
    assert table == (
        "nodes,repeat,train_seconds,status\n"
        "1,1,12.5,Completed\n2,1,12.5,Completed\n1,2,12.5,Completed\n2,2,,Failed\n"
    )
    assert len(read_measured(table)) == 4
    assert (tmp_path / "asked").read_text() == "report --csv times.csv\n"


def test_the_slurm_script_writes_a_table(tmp_path):
    command(
        tmp_path,
        "sbatch",
        'for option; do [[ $option == --nodes=* ]] && echo "${option#--nodes=}" >> submitted; done;'
        ' echo "70$(wc -l < submitted);cluster"',
    )
    rows = [
        "701|1|5961|COMPLETED",
        "701.batch|1|5961|COMPLETED",
        "701.0|1|5940|COMPLETED",
        "702|2|3322|COMPLETED",
        "702.0|2|3300|COMPLETED",
        "703|2|31|NODE_FAIL",
        "703.0|2|30|CANCELLED",
        "704|2|0|CANCELLED by 1000",
    ]
    lines = "\n".join(rows)
    command(tmp_path, "sacct", f"[[ $1 == --jobs=701,702,703,704 ]] && cat <<'EOF'\n{lines}\nEOF")
    table = run(tmp_path, ["bash", str(SCRIPTS / "slurm.sh")], counts="1 2", repeats="1 2")
    assert table.splitlines() == [
        "nodes,train_seconds,billable_seconds,status",
        "1,5940,5961,Completed",
        "2,3300,3322,Completed",
        "2,,31,Failed",
        "2,,,Stopped",
    ]
    assert len(read_measured(table)) == 4
    # Each repeat is a pass over all counts
    submitted = (tmp_path / "submitted").read_text().split()
    assert sorted(submitted[:2]) == sorted(submitted[2:]) == ["1", "2"]


def test_the_ray_script_writes_a_table(tmp_path):
    packages = {
        "ray/__init__.py": "",
        "ray/train/__init__.py": (
            "reports = []\nclass Checkpoint:\n    from_directory = staticmethod(lambda path:"
            " path)\nclass ScalingConfig:\n    def __init__(self, num_workers, use_gpu,"
            " placement_strategy): pass\ndef report(metrics, checkpoint): reports.append(metrics)\n"
        ),
        "ray/train/torch.py": (
            "import types, ray.train\n"
            "class TorchTrainer:\n"
            "    def __init__(self, loop, scaling_config): self.loop = loop\n"
            "    def fit(self):\n"
            "        self.loop({})\n"
            "        return types.SimpleNamespace(metrics=ray.train.reports[-1])\n"
        ),
        "torch/__init__.py": "",
        "torch/distributed.py": "def barrier(): pass\n",
        "my_training.py": (
            "import time\ndef build(config): return 0.5\ndef train(job):\n    time.sleep(0.001)\n  "
            "  return job\n"
        ),
    }
    for name, body in packages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body)
    table = run(tmp_path, [sys.executable, str(SCRIPTS / "ray_train.py")], PYTHONPATH=str(tmp_path))
    outcomes = read_measured(table)
    assert [(o.nodes, o.world_size) for o in outcomes[:4]] == [(1, 8), (2, 16), (4, 32), (8, 64)]
    assert len(outcomes) == 12
    assert outcomes[0].final_metric.value == 0.5
