"""The config that `nodesweep init --slurm` writes, given the output of sinfo and scontrol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nodesweep.cli.main import main
from nodesweep.configs.load import load_config
from nodesweep.configs.slurm import SlurmPlatform
from nodesweep.launch.slurm import starter

GPUS = """\
A banner of the site
cpu|up|infinite|1-infinite|0/12/0/12|64|256000|(null)
gpu*|up|infinite|1-infinite|2/4/0/6|128+|515000+|gpu:a100:4(S:0-1),shard:8
gpu*|up|infinite|1-infinite|0/2/0/2|96|515000|gpu:a100:8
"""
CPUS = "small|up|infinite|1-infinite|0/1/0/1|16|64000|(null)\n"


def write(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    sinfo: str,
    script: str,
    cluster: str = "Alps_2",
    code: str = "print('train_seconds=1')\n",
) -> Any:
    answers = {"sinfo": sinfo, "scontrol": f"ClusterName             = {cluster}\n"}
    monkeypatch.setattr(starter, "run", lambda command: answers[command[0]])
    monkeypatch.chdir(folder)
    program = folder / "code" / script
    program.parent.mkdir()
    program.write_text(code)
    shared = str(folder / "shared")
    return CliRunner().invoke(main, ["init", "--script", f"code/{script}", "--slurm", shared])


@pytest.mark.parametrize(
    ("sinfo", "script"),
    [
        pytest.param(GPUS, "train.py", id="GPUs"),
        pytest.param(CPUS, "train.py", id="CPUs"),
        pytest.param(CPUS, "work.sh", id="no Python"),
    ],
)
def test_a_config_describes_the_cluster(
    sinfo: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Any
) -> None:
    done = write(monkeypatch, tmp_path, sinfo, script)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "nodesweep.yaml").read_text()
    assert text.replace(str(tmp_path), "FOLDER") == snapshot
    config = load_config(tmp_path / "nodesweep.yaml")
    assert config.platform.launcher == "slurm" and not config.platform.problems(config)


def test_a_syntax_error_of_this_python_is_a_notice_since_the_nodes_might_have_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write(monkeypatch, tmp_path, CPUS, "train.py", code="def f(:\n")
    assert done.exit_code == 0, done.output
    assert "notice: code/train.py, line 1: " in done.output


@pytest.mark.parametrize(
    ("gres", "gpus", "model"),
    [
        ("gpu:8", 8, None),
        ("gpu:nvidia_h100_80gb_hbm3:8(S:0-1)", 8, "nvidia h100 80gb hbm3"),
        ("gpu:3090:4", 4, "3090"),
        ("gpu:2080ti:4,shard:8", 4, "2080ti"),
        ("gpu:1g.5gb:14", 14, "1g 5gb"),
        ("gpu:a100_3g.20gb:2", 2, "a100 3g 20gb"),
    ],
)
def test_names_of_gpus_and_names_that_are_numbers_are_read(
    gres: str, gpus: int, model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write(
        monkeypatch,
        tmp_path,
        f"2024*|up|infinite|1-infinite|0/2/0/2|64|256000|{gres}\n",
        "2024.py",
        "2024",
    )
    assert done.exit_code == 0, done.output
    platform = load_config(tmp_path / "nodesweep.yaml").platform
    assert isinstance(platform, SlurmPlatform)
    assert (platform.cluster, platform.partition) == ("2024", "2024")
    assert (platform.node.gpus, platform.node.gpu, platform.gres) == (gpus, model, f"gpu:{gpus}")


def test_a_cluster_without_partitions_or_a_wrong_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = write(monkeypatch, tmp_path, "", "train.py")
    assert done.exit_code == 2 and "sinfo lists no partition" in done.output
    odd = tmp_path / "with a space"
    odd.mkdir()
    done = write(monkeypatch, odd, CPUS, "train.py")
    assert done.exit_code == 2 and "platform.folder: " in done.output
    assert not list(tmp_path.rglob("nodesweep.yaml"))


def test_outside_of_a_cluster_the_command_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["init", "--slurm", str(tmp_path / "shared")])
    assert done.exit_code != 0 and "login node" in done.output
    assert not list(tmp_path.rglob("*"))
