"""The start-up of commands: modules that they must not import, and the benchmark's table and
verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.startup import LIMITS, Cell, main, table

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
from nodesweep.cli.main import main
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as end:
        assert not end.code, end.code
print(json.dumps(sorted(sys.modules)))
"""
HEAVY = {"prefect", "great_expectations", "sagemaker", "pandas", "pyarrow", "matplotlib", "httpx"}
HEAVY |= {"sqlalchemy", "fastapi", "moto", "pydantic_settings"}
LATER = {"pydantic", "yaml", "numpy", "scipy", "boto3", "botocore", "rich", "jinja2"}
KEPT = Cell("plan", 15.0, 14.9, 0.298, (0.29, 0.298, 0.3))
MISSED = Cell("cached re-run", 60.0, 60.1, 1.202, (1.202,))


def imported(*commands: str) -> list[str]:
    """Return the modules that these commands have imported when they end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *commands],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def packages(modules: list[str]) -> set[str]:
    """Return the top-level packages of these modules."""
    return {name.partition(".")[0] for name in modules}


def test_help_imports_nothing_that_takes_time() -> None:
    modules = imported("--help", "run --help", "list --help")
    assert "click" in modules
    assert packages(modules) & (HEAVY | LATER) == set()
    assert len(modules) < 250  # Python and click alone: 105


def test_what_sends_nothing_imports_nothing_of_the_stages_that_come_later() -> None:
    found = packages(imported("plan local", "requests local", "config validate local"))
    assert "pydantic" in found
    assert found & (HEAVY | {"numpy", "scipy", "boto3", "urllib3", "rich", "jinja2"}) == set()


def test_session_starts_prefects_server_before_anything_heavy_is_imported() -> None:
    """These imports take place between the config of a run and the start of platform and server."""
    program = "import json, sys, nodesweep.cli.session; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=300,
        check=True,
    )
    found = packages(json.loads(done.stdout))
    assert "nodesweep" in found
    assert found & (HEAVY | {"numpy", "scipy"}) == set()


def test_table_has_medians_beside_limits_and_says_which_are_missed() -> None:
    empty, _, kept, missed = table(0.02, [KEPT, MISSED]).splitlines()
    assert empty == "python -c pass: 0.020 s"
    assert kept.split() == ["plan", "14.9", "15", "0.30", "0.29", "0.30", "0.30"]
    assert missed.split()[-1] == "MISSED"


@pytest.mark.parametrize(("cells", "code"), [([KEPT], 0), ([KEPT, MISSED], 1)])
def test_exit_code_and_result(
    cells: list[Cell], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(runs: int) -> tuple[float, list[Cell]]:
        asked.append(runs)
        return 0.02, cells

    monkeypatch.setattr(startup, "measure", measure)
    output = tmp_path / "startup.json"
    assert main(["--runs", "3", "--output", str(output)]) == code
    assert asked == [3]
    written = json.loads(output.read_text())
    assert [cell["what"] for cell in written["cells"]] == [cell.what for cell in cells]
    assert written["runs"] == 3 and written["cores"] and written["versions"]["prefect"]
    assert written["empty_seconds"] == 0.02


WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
print('{"stage": "session"}', file=sys.stderr)
time.sleep(0.3)
try:
    print('{"stage": "preflight"}', file=sys.stderr, flush=True)
    time.sleep(3600)
except KeyboardInterrupt:
    sys.exit(1)
"""


def test_first_run_is_ended_once_its_preflight_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = staticmethod(lambda arguments: [sys.executable, "-c", WAITS])
    monkeypatch.setattr(startup.Folder, "_nodesweep", waits)
    assert 0.3 < startup.Folder(tmp_path / "new").run_to_preflight() < 1800


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such command"):
        startup.Folder(tmp_path).seconds("no-such-command")
    assert 0 < startup.Folder(tmp_path).seconds("--version") < 60
    assert (LIMITS["plan"], LIMITS["cached re-run"]) == (15.0, 60.0)
