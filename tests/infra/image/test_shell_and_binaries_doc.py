"""The examples of docs/shell-and-binaries.md, started like a node's program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "shell-and-binaries.md"
SAID = re.compile(r"rank=(?P<rank>\d+); world_size=(?P<nodes>\d+); train_seconds=(?P<s>[\d.e-]+);")


def example(language: str) -> str:
    [block] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


@pytest.fixture(params=["sh", "cpp"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An example that is ready to be started."""
    if request.param == "sh":
        path = tmp_path / "run.sh"
        path.write_text(example("sh").replace("seq 1 40000", "seq 1 40"))
        path.chmod(0o755)
        return path
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    source, path = tmp_path / "work.cpp", tmp_path / "work"
    source.write_text(example("cpp").replace("200000000", "400000"))
    [command] = re.findall(r"    (g\+\+ .*)\n", PAGE.read_text())
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    return path


def said(program: Path, hosts: list[str], host: str) -> tuple[int, int]:
    """Return the (rank, world size) that the example prints."""
    names = ",".join(f'"{name}"' for name in hosts)
    environment = {"SM_HOSTS": f"[{names}]", "SM_CURRENT_HOST": host, "PATH": "/usr/bin:/bin"}
    output = subprocess.run(
        [program], env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    found = SAID.search(output)
    assert found is not None, output
    assert float(found["s"]) >= 0
    return int(found["rank"]), int(found["nodes"])


def test_each_node_of_an_example_knows_its_share(program: Path) -> None:
    hosts = ["algo-1", "algo-2", "algo-10"]
    ranks = [said(program, hosts, host) for host in hosts]
    assert sorted(ranks) == [(0, 3), (1, 3), (2, 3)]
    assert said(program, ["algo-1"], "algo-1") == (0, 1)
