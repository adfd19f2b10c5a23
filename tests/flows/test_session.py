"""Ctrl-C: the first one ends in order, the second at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from flows.session import _Interrupt
signal.signal(signal.SIGINT, _Interrupt())
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("ending in order", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
print("never")
"""


def test_a_second_ctrl_c_ends_at_once_and_says_what_may_run_on() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stdout == "ending in order\n"
    assert "Ctrl-C again ends at once" in done.stderr and "nodesweep stop SWEEP_ID" in done.stderr
