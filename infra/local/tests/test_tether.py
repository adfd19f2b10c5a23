"""A tethered process ends when its parent ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.process_identity import start_ticks
from sagemaker_emulator.tether import tethered

ROOT = Path(__file__).resolve().parents[3]
STARTER = f"""
import subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from sagemaker_emulator.tether import tethered
print(subprocess.Popen(tethered("sleep", "60")).pid, flush=True)
sys.stdin.read()
"""


def test_ends_with_a_starter_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert start_ticks(pid) is not None
        starter.kill()
        wait_until(lambda: start_ticks(pid) is None)


def test_is_the_command_itself() -> None:
    done = subprocess.run(
        tethered("sh", "-c", 'echo "$1"; exit 3', "sh", "a b"), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, b"a b\n")
