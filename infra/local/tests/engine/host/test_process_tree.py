from __future__ import annotations

import os
import subprocess
from pathlib import Path

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host.process_tree import (
    MARKER_NODE,
    MARKER_STATE,
    Membership,
    kill_all,
)


def sleeper(node, state_id):
    environment = {MARKER_STATE: state_id, MARKER_NODE: node, "PATH": os.defpath}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    # the environment is empty for a moment after the start
    wait_until(lambda: state_id in Path(f"/proc/{process.pid}/environ").read_text())
    return process


def test_marks_tell_nodes_jobs_and_engines_apart(tmp_path):
    one, other = f"one-{tmp_path}", f"other-{tmp_path}"  # ignores other tests on this machine
    processes = {
        name: sleeper(*name)
        for name in [
            ("j/algo-1", one),
            ("j/algo-10", one),
            ("k/algo-1", one),
            ("j/algo-1", other),
        ]
    }
    pid = {name: process.pid for name, process in processes.items()}
    try:
        node = Membership(state_id=one, node_prefix="j/algo-1").members()
        job = Membership(state_id=one, node_prefix="j/").members()
        engine = Membership(state_id=one).members()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert node == {pid["j/algo-1", one]}
    assert job == node | {pid["j/algo-10", one]}
    assert engine == job | {pid["k/algo-1", one]}


def test_kill_all_ends_descendants_and_gives_up_at_its_deadline():
    shell = subprocess.Popen(["sh", "-c", "env -i setsid sleep 61 & wait"], start_new_session=True)
    try:
        assert kill_all(Membership(session_ids=frozenset({shell.pid})), HANG_SECONDS) == set()
        seconds = iter(range(100))
        unkillable = Membership(session_ids=frozenset({os.getsid(0)}))
        unkillable = type("Unkillable", (), {"members": lambda _self: {2**22 + 1}})()
        assert kill_all(unkillable, 3.0, clock=lambda: next(seconds), sleep=lambda _: None) == {
            2**22 + 1
        }
    finally:
        shell.wait()
