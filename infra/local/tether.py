"""Ties a process to the one that starts it, so that it ends with it, even by kill -9."""

from __future__ import annotations

import os
import sys

# PR_SET_PDEATHSIG with SIGKILL: it survives execvp(), and what the command starts does not inherit
# it. Whoever has lost its starter before that has another parent.
_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def tethered(*command: str) -> list[str]:
    """The command line that runs `command` tied to this process, which is to start it."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), *command]
