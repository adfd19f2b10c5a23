"""The rules about the cluster's partitions, on sinfo's words."""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from nodesweep.configs.load import parse_config
from nodesweep.launch.slurm import check
from nodesweep.launch.slurm.check import Partition, check_cluster, read_partitions
from nodesweep.launch.slurm.commands import CommandFailed
from nodesweep.scaling.rules.rule import Findings
from nodesweep.tasks.preflight.facts import read_facts
from tests.configs.test_slurm import RAW

SINFO = """\
Welcome to the cluster
gpu*|up|1-00:00:00|1-infinite|2/2/4/8|64
small|up|infinite|1-2|0/6/0/6|32+
small|up|infinite|1-2|1/1/0/2|64
short|up|10:00|1-infinite|0/8/0/8|64
closed|down|infinite|1-infinite|0/8/0/8|64
"""


def checked(
    monkeypatch: pytest.MonkeyPatch, sinfo: str = SINFO, nodes: int = 4, **platform: Any
) -> Findings:
    raw = {
        **RAW,
        "sweep": {"node_counts": [1, nodes], "repeats": 1},
        "training": {**RAW["training"], "max_runtime_seconds": 1200},
        "platform": {**RAW["platform"], "folder": gettempdir(), **platform},
    }

    def answer(command: list[str]) -> str:
        assert "--all" in command, "the partition may be hidden"
        return sinfo

    monkeypatch.setattr(check, "run", answer)
    return check_cluster(read_facts(parse_config(raw, "the config")))


def test_lines_are_read() -> None:
    partitions, default = read_partitions(SINFO)
    assert default == "gpu"
    assert partitions["gpu"] == Partition(True, 86_400.0, None, 8, 4, 64)
    assert partitions["small"] == Partition(True, None, 2, 8, 8, 32)
    assert partitions["short"].time_seconds == 600
    assert not partitions["closed"].is_up and sorted(partitions) == [
        "closed", "gpu", "short", "small",
    ]  # fmt: skip


def test_a_sweep_that_fits_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch) == Findings()
    assert checked(monkeypatch, partition="gpu,short") != Findings(), "one of them is too short"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"nodes": 6}, id="drained nodes"),
        pytest.param({"nodes": 9}, id="too many nodes"),
        pytest.param({"partition": "small"}, id="too many for a job"),
        pytest.param({"partition": "short"}, id="too long"),
        pytest.param({"partition": "closed"}, id="down"),
        pytest.param({"partition": "cpu"}, id="unknown"),
        pytest.param({"sinfo": SINFO.replace("*", "")}, id="no default"),
        pytest.param({"node": {"cores": 128, "gpus": 4}}, id="too many cores"),
    ],
)
def test_what_does_not_fit_is_said(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    assert checked(monkeypatch, **options) == snapshot


def test_a_folder_that_cannot_be_used_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    [problem] = checked(monkeypatch, folder=str(tmp_path / "file" / "me")).problems
    assert problem.startswith(f"platform.folder: {tmp_path}/file is a file, not a folder")
    assert checked(monkeypatch, folder=str(tmp_path / "to" / "be" / "created")) == Findings()
    assert not list(tmp_path.glob("to"))


def test_a_cluster_that_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_facts(parse_config(RAW, "the config"))

    def fail(command: list[str]) -> str:
        raise CommandFailed("sinfo can't be run")

    monkeypatch.setattr(check, "run", fail)
    assert "sinfo can't be run" in check_cluster(facts).problems[-1]
