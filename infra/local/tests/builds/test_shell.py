"""The shell of a build runs all commands, can be stopped, has a deadline, and leaves no process."""

from __future__ import annotations

import threading
import time

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.builds.shell import BuildShell, ShellEnded
from sagemaker_emulator.process_identity import start_ticks


@pytest.fixture
def lines():
    return []


@pytest.fixture
def stop():
    return threading.Event()


@pytest.fixture
def shell(tmp_path, lines, stop):
    with BuildShell(
        tmp_path, {"PATH": "/usr/bin:/bin", "GIVEN": "a b"}, lines.append, stop
    ) as running:
        yield running


def deadline():
    return time.monotonic() + HANG_SECONDS


def test_exit_codes_come_back(shell):
    assert [shell.run(command, deadline()) for command in ("true", "false", "(exit 7)")] == [
        0,
        1,
        7,
    ]


def test_commands_share_variables_and_the_folder(shell, tmp_path, lines):
    for command in ('mkdir inner && cd inner && NAME="of $GIVEN"', 'echo "$NAME in $PWD"'):
        assert shell.run(command, deadline()) == 0
    assert lines == [f"of a b in {tmp_path / 'inner'}"]


def test_command_of_several_lines_with_an_end_without_a_newline(shell, lines):
    assert shell.run("for i in 1 2; do\n  printf $i\ndone", deadline()) == 0
    assert lines == ["12"]


def test_both_outputs_are_streamed(shell, lines):
    assert shell.run("echo out; echo err >&2", deadline()) == 0
    assert lines == ["out", "err"]


def test_command_reads_no_other_command(shell, lines):
    assert shell.run("cat", deadline()) == 0
    assert shell.run("echo still here", deadline()) == 0
    assert lines == ["still here"]


def test_exit_ends_the_shell_with_its_code(shell):
    assert shell.run("exit 3", deadline()) == 3
    assert shell.run("true", deadline()) == 3


def test_deadline_and_stop_end_a_command(shell, stop):
    with pytest.raises(ShellEnded, match="timed out"):
        shell.run("sleep 600", time.monotonic() + 0.2)
    stop.set()
    with pytest.raises(ShellEnded, match="stopped"):
        shell.run("true", deadline())


def test_what_it_has_started_ends_with_it(tmp_path, lines, stop):
    def take(line):
        lines.append(line)
        stop.set()

    with (
        BuildShell(tmp_path, {"PATH": "/usr/bin:/bin"}, take, stop) as shell,
        pytest.raises(ShellEnded),
    ):
        shell.run("sleep 600 & echo $!; wait", deadline())
    wait_until(lambda: start_ticks(int(lines[0])) is None)
