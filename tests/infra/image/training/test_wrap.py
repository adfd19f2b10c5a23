from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from training.cluster import cluster_from_environment
from training.errors import UserError
from training.wrap import main, parse, torch_variables

from benchmarks.ports import free_port
from tests.infra.image.training.processes import DEADLINE_SECONDS, IMAGE, Trainings, succeed

PREFIX = "OMPI_COMM_WORLD_"


def test_mpi_ranks_become_torch_ones_with_the_first_host_as_master() -> None:
    mpi = {
        PREFIX + "RANK": "5",
        PREFIX + "SIZE": "8",
        PREFIX + "LOCAL_RANK": "1",
        PREFIX + "LOCAL_SIZE": "4",
    }
    environment = {**mpi, "SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    assert torch_variables(cluster_from_environment(environment)) == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "algo-1",
        "MASTER_PORT": "7777",
    }


def test_one_process_per_gpu_unless_told_otherwise(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert parse([str(script), "--processes", "9"], {"SM_NUM_GPUS": "4"}) == (
        4,
        [str(script), "--processes", "9"],
    )
    assert parse(["--processes", "2", str(script)], {"SM_NUM_GPUS": "4"}) == (2, [str(script)])
    assert parse([str(script)], {"SM_NUM_GPUS": "0"}) == (1, [str(script)])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "python -m training.wrap"),
        (["none.py"], "none.py"),
        (["--processes", "0", "x.py"], "--processes: got '0'"),
    ],
)
def test_a_wrong_call_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(argv, {})


def test_a_wrong_call_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("ValueError: no script")


def test_the_script_runs_as_if_called_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_of_script.py").write_text("VALUE = 3\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\nfrom helper_of_script import VALUE\n"
        "facts = [__name__, sys.argv[1:], VALUE, os.environ['WORLD_SIZE']]\n"
        "open('facts', 'w').write(json.dumps(facts))\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    ):
        monkeypatch.setenv(name, "0")  # so that it is taken back after the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(sys, "argv", ["wrap"])
    monkeypatch.setattr(sys, "path", ["here", *sys.path])
    assert main(["script.py", "--epochs", "3"]) == 0
    assert json.loads((tmp_path / "facts").read_text()) == ["__main__", ["--epochs", "3"], 3, "1"]


def test_a_failing_process_ends_the_others_with_its_exit_code(
    tmp_path: Path, trainings_here: Trainings
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\nif os.environ['LOCAL_RANK'] == '1': sys.exit(7)\ntime.sleep(3600)\n"
    )
    arguments = ("--processes", "2", str(script))
    process = trainings_here.start(
        *arguments, program=IMAGE / "training" / "wrap.py", PYTHONPATH=str(IMAGE)
    )
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 7


SCRIPT = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"])])
dist.all_reduce(total)
assert dist.get_world_size() == 4
print(f"sum={int(total)};", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_nodes_of_two_processes_meet(tmp_path: Path, trainings: Trainings) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    hosts, port = ["127.0.7.1", "127.0.7.2"], str(free_port())
    outputs = succeed(
        *(
            trainings.start(
                "--processes",
                "2",
                str(script),
                program=IMAGE / "training" / "wrap.py",
                node=host,
                PYTHONPATH=str(IMAGE),
                SM_HOSTS=json.dumps(hosts),
                SM_CURRENT_HOST=host,
                SM_NETWORK_INTERFACE_NAME="lo",
                MASTER_PORT=port,
            )
            for host in hosts
        )
    )
    assert outputs.count("sum=6;") == 2
