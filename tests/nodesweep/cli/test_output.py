"""Output of commands suits any terminal and reader, and the exit code after a finished report
depends on the report alone."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.table import Table

from nodesweep.cli.main import main
from nodesweep.cli.output import print_notice, print_rendered, print_text

TABLE = "nodes,train_seconds\n1,100\n2,55\n4,30\n"
# The command in a process of its own, whose report has no plots: they take seconds of CPU time.
WITHOUT_PLOTS = """
from nodesweep.cli.main import main
from nodesweep.scaling.report import render
render._draw_plots = lambda report: ({}, {})
main()
"""
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def arguments(folder: Path) -> list[str]:
    """Return the command line that creates a report from a table."""
    (folder / "t.csv").write_text(TABLE)
    return ["report", "--csv", str(folder / "t.csv"), "--output", str(folder)]


def assert_is_whole(code: int, printed: str, errors: str) -> None:
    assert (code, errors) == (0, "")
    assert "1.8x" in printed and "report.html" in printed


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_report_is_printed_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    done = CliRunner(charset=encoding).invoke(main, arguments(tmp_path))
    assert_is_whole(done.exit_code, done.stdout, done.stderr)
    assert ("?" in done.stdout) == (encoding == "latin-1"), (
        "in ASCII rich draws with other characters"
    )


def test_a_report_is_printed_in_the_locale_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PLOTS, *arguments(tmp_path)]
    done = subprocess.run(
        command,
        env={**os.environ, **C_LOCALE},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert_is_whole(done.returncode, done.stdout, done.stderr)


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-c", WITHOUT_PLOTS, *arguments(tmp_path)]
    done = subprocess.run(
        command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=300, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "t" / "report.html").is_file()


@pytest.mark.parametrize(
    ("redirected", "code"),
    [
        (">&-", 0),
        ("<&- >&- 2>&-", 0),
        (">/dev/full", 1),
    ],
)
def test_streams_that_are_closed_or_full_give_no_traceback(
    tmp_path: Path, redirected: str, code: int
) -> None:
    """A closed stdout is no error, since the report is in its file."""
    command = shlex.join([sys.executable, "-c", WITHOUT_PLOTS, *arguments(tmp_path)])
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirected}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == code and "Traceback" not in done.stderr
    assert (os.strerror(errno.ENOSPC) in done.stderr) == (code == 1)
    report = next(tmp_path.glob("*/report.html"))
    assert report.read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        ("--version", 0, "python -m nodesweep, version"),
        ("plan local", 0, "local: 4 jobs"),
        ("plan nowhere.yaml", 2, ""),
        ("--unknown", 2, ""),
    ],
)
def test_a_closed_stderr_leaves_exit_code_and_stdout_as_they_are(
    words: str, code: int, printed: str
) -> None:
    command = shlex.join([sys.executable, "-m", "nodesweep", *words.split()])
    done = subprocess.run(
        ["bash", "-c", f"{command} 2>&-"], stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == code
    assert done.stdout.startswith(printed) and bool(done.stdout) == bool(printed)


def test_help_that_cannot_be_written_is_a_message() -> None:
    command = shlex.join([sys.executable, "-m", "nodesweep", "--help"])
    done = subprocess.run(
        ["bash", "-c", f"{command} >/dev/full"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"nodesweep: {os.strerror(errno.ENOSPC)}\n"


EVIL = "a\x1b]52;c;aGk=\x07b\x1b[2J\x9b1A\u202ec"
ESCAPED = "a\\x1b]52;c;aGk=\\x07b\\x1b[2J\\x9b1A\\u202ec"


def test_what_comes_from_outside_reaches_no_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_text(EVIL)
    print_notice(EVIL)
    table = Table("job")
    table.add_row(EVIL)
    print_rendered(table)
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{ESCAPED}\n") and printed.err == f"{ESCAPED}\n"
    assert printed.out.count("\\x1b]52") == 2 and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(
        printed.out + printed.err
    )
