"""Ties a process to its parent, so that it is killed when the parent ends for any reason."""

from __future__ import annotations

import os
import sys

# PR_SET_PDEATHSIG with SIGKILL survives execvp(), but is not inherited by children of the command.
# If the parent has died already, getppid() returns a different pid.
_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def tethered(*command: str) -> list[str]:
    """Return a command line that ties `command` to this process, which must start it."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), *command]
