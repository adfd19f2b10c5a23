"""Ties a process to its parent, so that the child is killed however the parent ends."""

from __future__ import annotations

import os
import sys

# PR_SET_PDEATHSIG with SIGKILL survives execvp(), and the command's children do not inherit it. If
# the parent has already died, getppid() is different.
_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def tethered(*command: str) -> list[str]:
    """Return a command line that runs `command` tied to this process, which must be its parent."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), *command]
