"""The benchmark counts the sweeps that recommend a node count whose attempts fail too often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.failed_attempts import main, simulate


def test_a_count_that_mostly_fails_is_wrong_only_where_no_attempt_failed() -> None:
    often, rarely = simulate(20, [0.2, 1.0], [3], seed=1)
    assert (often.wrong_seen, often.is_right) == (0, True)
    assert often.wrong <= 0.1 < often.wrong_before
    assert rarely.largest >= 0.8
    assert (rarely.wrong, rarely.wrong_before, rarely.none) == (0, 0, 0)


def test_its_result_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    options = ["--sweeps", "2", "--completes", "0.3", "--repeats", "1", "--output", str(output)]
    assert main(options) == 0
    assert json.loads(output.read_text())["cells"][0]["completes"] == 0.3
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("wrong", [["--sweeps", "0"], ["--completes", "0"], ["--repeats", "0"]])
def test_an_impossible_setting_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
