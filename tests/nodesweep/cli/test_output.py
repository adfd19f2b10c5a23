"""Output of commands suits any terminal and reader, and the exit code after a finished report
depends on the report alone."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import pytest
from click.testing import CliRunner
from rich.table import Table

from nodesweep.cli.main import main
from nodesweep.cli.output import print_notice, print_rendered, print_text

REPOSITORY = Path(__file__).resolve().parents[3]
TABLE = "nodes,train_seconds\n1,100\n2,55\n4,30\n"
# Two commands in a process of its own; the report has no plots: they take seconds of CPU time.
COMPARE_AND_REPORT = """
import sys
from nodesweep.cli.main import main
from nodesweep.scaling.report import render
assert not {"jinja2", "matplotlib", "pandas"} & set(sys.modules), "imported"
render._draw_plots = lambda report: ({}, {})
golden, *report = sys.argv[1:]
main(["compare", golden, golden], standalone_mode=False)
assert not {"prefect", "boto3", "pandas", "matplotlib"} & set(sys.modules), "imported"
main(report, standalone_mode=False)
assert not {"prefect", "boto3"} & set(sys.modules), "imported"
"""
OPEN_CLOSED_STREAMS = """
import sys
from nodesweep.cli.output import open_closed_streams
open_closed_streams()
sys.exit([stream.fileno() for stream in (sys.stdin, sys.stdout, sys.stderr)] != [0, 1, 2])
"""
GOLDEN = REPOSITORY / "tests" / "nodesweep" / "scaling" / "golden" / "reference.json"
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def arguments(folder: Path) -> list[str]:
    """Return the command line that creates a report from a table."""
    (folder / "t.csv").write_text(TABLE)
    return ["report", "--csv", str(folder / "t.csv"), "--output", str(folder)]


def exit_code(stdout: TextIO | None, *arguments: str) -> Any:
    """Return the exit code of a command that prints to this stream."""
    with redirect_stdout(stdout), pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


@contextmanager
def unread() -> Iterator[TextIO]:
    """A stream whose reader has seen enough."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as stream:
        yield stream


def assert_is_written(folder: Path) -> None:
    report = (folder / "t" / "report.html").read_text()
    assert report.startswith("<!") and report.rstrip().endswith("</html>")


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


def test_reports_are_printed_in_the_locale_c_without_prefect_and_aws(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE_AND_REPORT, str(GOLDEN), *arguments(tmp_path)],
        env={**os.environ, **C_LOCALE},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert_is_whole(done.returncode, done.stdout, done.stderr)


@pytest.mark.usefixtures("without_plots")
def test_a_reader_that_has_seen_enough_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with unread() as stdout:
        assert exit_code(stdout, *arguments(tmp_path)) == 0
    assert capsys.readouterr().err == ""
    assert_is_written(tmp_path)
    with unread() as stdout:
        command = [sys.executable, "-m", "nodesweep", "plan", "local"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.usefixtures("without_plots")
def test_a_full_disk_is_a_message_and_the_report_in_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as stdout, open(os.devnull, "w") as nowhere:
        assert exit_code(stdout, *arguments(tmp_path)) == 1
        os.dup2(nowhere.fileno(), stdout.fileno())  # closing it prints once more
    assert capsys.readouterr().err == f"nodesweep: {os.strerror(errno.ENOSPC)}\n"
    assert_is_written(tmp_path)


@pytest.mark.usefixtures("without_plots")
def test_streams_that_are_closed_are_no_error(tmp_path: Path) -> None:
    """The report is in its file, whose descriptor is none of theirs."""
    with redirect_stderr(None):
        assert exit_code(None, *arguments(tmp_path)) == 0
    assert_is_written(tmp_path)
    command = shlex.join([sys.executable, "-c", OPEN_CLOSED_STREAMS])
    subprocess.run(["bash", "-c", f"{command} <&- >&- 2>&-"], check=True)


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
