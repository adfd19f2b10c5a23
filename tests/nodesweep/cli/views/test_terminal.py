"""The live view on a real terminal (a pty): a resize, Ctrl-C, and the terminal's content at the
end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from tests.nodesweep.cli.views.recorded import SWEEP

pytestmark = pytest.mark.slow
SGR = re.compile(r"\x1b\[([\d;]*)m")
COLOURS = {str(code) for ten in (30, 40, 90, 100) for code in range(ten, ten + 9)}
REPOSITORY = Path(__file__).resolve().parents[4]
PROGRAM = """
import os, signal, sys, time
from dataclasses import replace
from datetime import UTC, datetime
from nodesweep.cli.views.stream import EventStream, ViewOptions
from nodesweep.flows.stages.signals import EndSignals
from tests.nodesweep.cli.views.recorded import in_the_middle

stream = EventStream(ViewOptions(resume_command="nodesweep run my.yaml"), sys.stderr)
signal.signal(signal.SIGINT, EndSignals(stream.announce))
try:
    for event in in_the_middle():
        stream._show(replace(event, time=datetime.now(UTC)))
        time.sleep(0.02)
    time.sleep(600)
except KeyboardInterrupt as error:
    while not os.path.exists("seen"): time.sleep(0.01)
    stream.report_end(error)
finally:
    stream.detach()
print("AFTER", file=sys.stderr)
"""


def resize(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(terminal: int, words: str) -> str:
    """Return the output of the terminal up to these words."""
    got, deadline = b"", time.monotonic() + HANG_SECONDS
    while words.encode() not in got and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                got += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
    assert words.encode() in got, got[-2000:].decode(errors="replace")
    return got.decode(errors="replace")


def start(folder: Path, **more: str) -> tuple[int, int]:
    """Start the program in that folder on a new terminal; return its PID and the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        left_out = ("CI", "NO_COLOR", "COLORTERM", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= {
            "TERM": "xterm-256color",
            "PYTHONPATH": str(REPOSITORY),
            "LC_ALL": "C.UTF-8",
            **more,
        }
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM], environment)
    return pid, terminal


@pytest.mark.parametrize(("more", "has_colours"), [({"NO_COLOR": "1"}, False), ({}, True)])
def test_no_color_gives_no_colour_codes(
    tmp_path: Path, more: dict[str, str], has_colours: bool
) -> None:
    (tmp_path / "seen").touch()
    pid, terminal = start(tmp_path, **more)
    try:
        resize(terminal, 100, 30)
        drawn = read_until(terminal, "2/4 points")
        os.write(terminal, b"\x03")
        drawn += read_until(terminal, "AFTER")
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(terminal)
    assert "\x1b[?25l" in drawn, "the live view is drawn all the same"
    codes = {code for codes in SGR.findall(drawn) for code in codes.split(";")}
    assert bool(codes & COLOURS) is has_colours, codes


def test_resize_and_ctrl_c_leave_a_clean_transcript(tmp_path: Path) -> None:
    pid, terminal = start(tmp_path)
    try:
        resize(terminal, 100, 30)
        drawn = read_until(terminal, "14/28") + read_until(terminal, "2/4 points")
        assert "2/4 points" in drawn and "\x1b[?25l" in drawn
        resize(terminal, 80, 24)
        narrow = read_until(terminal, "2/4 points")
        assert "n4-r1-a1" in narrow
        os.write(terminal, b"\x03")
        stopping = read_until(terminal, "(n4-r1-a1)")
        (tmp_path / "seen").touch()
        rest = stopping + read_until(terminal, "AFTER")
        assert "2 of 4 points" in " ".join(rest.split())
        assert "--resume local-20261123052325-08094dab" in rest
        assert "\x1b[?25h" in rest, "the cursor is shown again"
        left = rest.rpartition("\x1b[2K")[2]
        assert "14/28" not in left and "▸" not in left, "the view has taken itself away"
        assert "Traceback" not in drawn + narrow + rest
        assert (tmp_path / "reports" / SWEEP / "run.log").is_file(), (
            "its log, and not the checkout's"
        )
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.close(terminal)
