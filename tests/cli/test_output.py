"""What commands print reaches any terminal and any reader; a finished report's exit code is the report's alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = "nodes,train_seconds\n1,100\n2,55\n4,30\n"


def report(folder: Path, reads: int | None = None, **environment: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a table's report; a reader that takes `reads` bytes closes the pipe after them."""
    (folder / "t.csv").write_text(TABLE)
    command = [sys.executable, "-m", "cli.main", "report", "--csv", str(folder / "t.csv"), "--output", str(folder)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment}
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        if reads is not None:
            printed = process.stdout.read(reads)
            process.stdout.close()
        else:
            printed = process.stdout.read()
        errors = process.stderr.read().decode()
        return process.wait(60), printed.decode("ascii", "replace"), errors
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    "environment",
    [
        *({"PYTHONIOENCODING": encoding} for encoding in ("latin-1", "ascii", "ascii:strict", "cp1252")),
        {"LC_ALL": "C"},
        C_LOCALE,
    ],
    ids=lambda environment: " ".join(environment.values()),
)
def test_a_report_is_printed_in_any_encoding(tmp_path: Path, environment: dict[str, str]) -> None:
    code, printed, errors = report(tmp_path, **environment)
    assert (code, errors) == (0, "")
    assert "Speedup (times as given)" in printed and "1.8x" in printed and "report.html" in printed


@pytest.mark.parametrize("reads", [0, 1])
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path, reads: int) -> None:
    code, _, errors = report(tmp_path, reads=reads)
    assert (code, errors) == (0, "")
    assert (tmp_path / "t" / "report.html").is_file()
