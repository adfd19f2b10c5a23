"""The sweep that an argument names: a full ID, the beginning of an ID, or `latest`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from syrupy.assertion import SnapshotAssertion

from nodesweep.cli.main import main
from nodesweep.cli.sweep_ids import known_sweeps, match_sweep, resolve_resume_id
from tests.plain import plain

REPOSITORY = Path(__file__).resolve().parents[3]
OLD, MIDDLE, NEW = (
    "zeta-20260102030405-0a1b2c3d",
    "bench-20260105030405-0a1b2c3d",
    "bench-20260105040405-11112222",
)
ELSEWHERE = "bench-20250105040405-99999999"
Folder = Callable[..., Path]


def nodesweep(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return reports(id, …), which writes ./reports with a record of each sweep."""
    monkeypatch.chdir(tmp_path)

    def write(*sweeps: str, file: str = "sweep.json") -> Path:
        for sweep in sweeps:
            folder = tmp_path / "reports" / sweep
            folder.mkdir(parents=True)
            (folder / file).write_text("{}")
        return tmp_path / "reports"

    return write


def test_known_sweeps_are_folders_of_sweeps_the_newest_first(reports: Folder) -> None:
    folder = reports(OLD, NEW)
    reports(MIDDLE, file="report.json")
    reports("times", file="report.json")  # of a table
    reports(ELSEWHERE, file="run.log")  # ended before its sweep was recorded
    (folder / "latest").symlink_to(OLD)
    (folder / "history-bench.svg").write_text("")
    assert known_sweeps(folder) == [NEW, MIDDLE, OLD]
    assert known_sweeps(folder / "nowhere") == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (MIDDLE, MIDDLE),
        (ELSEWHERE, ELSEWHERE),  # a whole id needs nothing here
        ("latest", NEW),
        ("z", OLD),
        ("bench-2026010504", NEW),
        (NEW[:-1], NEW),
    ],
)
def test_an_id_its_beginning_and_latest_mean_a_sweep(typed: str, meant: str) -> None:
    assert match_sweep(typed, [NEW, MIDDLE, OLD], "here") == meant


@pytest.mark.parametrize(
    "typed",
    [
        "bench-20260105",
        "yesterday",
        "",
        "../reports",
    ],
)  # fmt: skip
def test_what_means_no_one_sweep_names_those_there_are(
    typed: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(click.BadParameter) as refused:
        match_sweep(typed, [NEW, MIDDLE, OLD], "here")
    assert refused.value.message == snapshot


def test_many_sweeps_are_not_all_named(snapshot: SnapshotAssertion) -> None:
    sweeps = [f"bench-202601{day:02}030405-0a1b2c3d" for day in range(1, 31)]
    with pytest.raises(click.BadParameter) as refused:
        match_sweep("bench", sweeps, "here")
    assert refused.value.message.count("0a1b2c3d") == 10
    assert refused.value.message == snapshot


def test_resume_means_a_sweep_of_its_config_alone(
    reports: Folder, snapshot: SnapshotAssertion
) -> None:
    folder = reports(OLD, MIDDLE, NEW)

    def resumed(typed: str) -> str:
        return resolve_resume_id(typed, folder, lambda sweep: sweep.endswith("0a1b2c3d"))

    assert (resumed("latest"), resumed("bench"), resumed(NEW)) == (MIDDLE, MIDDLE, NEW)
    with pytest.raises(click.BadParameter) as refused:
        resumed(NEW[:-1])
    assert plain(refused.value, folder=folder) == snapshot


@pytest.mark.parametrize(
    "command",
    [("collect",), ("report",), ("stop",), ("logs",)],
    ids=" ".join,
)
def test_commands_spell_out_what_was_typed(
    reports: Folder, command: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    reports(OLD, NEW)
    found = nodesweep(*command, "latest")
    assert found.stderr == snapshot
    # the record is found, and is none
    assert (found.exit_code, f"{NEW}/sweep.json: damaged" in found.stderr) == (2, True)
    whole = nodesweep(*command, NEW)
    assert found.stderr.endswith(whole.stderr) and found.stderr != whole.stderr
    unknown = nodesweep(*command, "yesterday")
    assert (unknown.exit_code, OLD in unknown.stderr) == (2, True)


def test_output_says_where_the_sweeps_are(
    reports: Folder, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    reports(NEW).rename(tmp_path / "elsewhere")
    assert nodesweep("report", "latest").stderr == snapshot
    found = nodesweep("report", "latest", "--output", "elsewhere").stderr
    assert found == snapshot


def completed(*words: str, incomplete: str = "") -> list[tuple[str, str]]:
    """Return (type, value) of each completion."""
    complete = ShellComplete(main, {}, "nodesweep", "_NODESWEEP_COMPLETE")
    return [(item.type, item.value) for item in complete.get_completions(list(words), incomplete)]


@pytest.mark.parametrize(
    "words",
    [
        ("collect",), ("report",), ("stop",), ("logs", "--nodes", "2"), ("show",), ("open",),
        ("run", "local", "--resume"), ("compare",), ("compare", OLD),
        ("history", "bench", "--reference"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_sweep_ids_complete(reports: Folder, words: tuple[str, ...]) -> None:
    reports(OLD, MIDDLE, NEW)
    assert completed(*words) == [("plain", word) for word in (NEW, MIDDLE, OLD, "latest")]
    assert completed(*words, incomplete="z") == [("plain", OLD)]


def test_completion_looks_where_output_says(reports: Folder, tmp_path: Path) -> None:
    reports(NEW).rename(tmp_path / "elsewhere")
    assert completed("show") == []
    assert completed("show", "--output", "elsewhere", incomplete="b") == [("plain", NEW)]


def test_what_is_compared_may_be_a_file(reports: Folder) -> None:
    reports(NEW)
    assert completed("compare", incomplete="./rep") == [("file", "./rep")]


def test_completion_imports_nothing_heavy(reports: Folder) -> None:
    folder = reports(NEW).parent
    program = (
        "import sys, atexit\n"
        "heavy = {'prefect', 'boto3', 'botocore', 'pydantic', 'pandas', 'rich', 'yaml'}\n"
        "atexit.register(lambda: print(heavy & set(sys.modules)))\n"
        "from nodesweep.cli.main import main\n"
        "main(prog_name='nodesweep')"
    )
    asked = {
        "_NODESWEEP_COMPLETE": "bash_complete",
        "COMP_WORDS": "nodesweep show ben",
        "COMP_CWORD": "2",
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, cwd=folder, env=os.environ | asked, check=True,
    )  # fmt: skip
    assert done.stdout == f"plain,{NEW}\nset()\n"
