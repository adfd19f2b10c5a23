"""The benchmark of the start: what it says of its numbers; the numbers themselves are its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.startup import LIMITS, Cell, main, table

KEPT = Cell("plan", 1.0, 0.8, (0.7, 0.8, 0.9))
MISSED = Cell("cached re-run", 8.0, 8.1, (8.1,))


def test_table_has_medians_beside_limits_and_says_which_are_missed() -> None:
    kept, missed = table([KEPT, MISSED]).splitlines()[1:]
    assert kept.split() == ["plan", "0.80", "1.0", "0.70", "0.80", "0.90"]
    assert missed.split()[-1] == "MISSED"


@pytest.mark.parametrize(("cells", "code"), [([KEPT], 0), ([KEPT, MISSED], 1)])
def test_exit_code_and_result(
    cells: list[Cell], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measure(runs: int) -> list[Cell]:
        asked.append(runs)
        return cells

    monkeypatch.setattr(startup, "measure", measure)
    output = tmp_path / "startup.json"
    assert main(["--runs", "3", "--output", str(output)]) == code
    assert asked == [3]
    written = json.loads(output.read_text())
    assert [cell["what"] for cell in written["cells"]] == [cell.what for cell in cells]
    assert written["runs"] == 3 and written["cores"] and written["versions"]["prefect"]


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No such command"):
        startup.Folder(tmp_path).seconds("no-such-command")
    assert 0 < startup.Folder(tmp_path).seconds("--version") < 60
    assert LIMITS["--help"] == 0.1
