from __future__ import annotations

import os
import subprocess

from nodesweep.infra.local.engine.host.process_tree import (
    MARKER_NODE,
    MARKER_STATE,
    Membership,
    kill_all,
)


def sleeper(node, state_id="state-x"):
    environment = {MARKER_STATE: state_id, MARKER_NODE: node, "PATH": os.defpath}
    return subprocess.Popen(["sleep", "60"], env=environment)


def test_marks_tell_nodes_jobs_and_engines_apart():
    processes = {
        name: sleeper(*name)
        for name in [
            ("j/algo-1", "s1"),
            ("j/algo-10", "s1"),
            ("k/algo-1", "s1"),
            ("j/algo-1", "s2"),
        ]
    }
    pid = {name: process.pid for name, process in processes.items()}
    try:
        node = Membership(state_id="s1", node_prefix="j/algo-1").members()
        job = Membership(state_id="s1", node_prefix="j/").members()
        engine = Membership(state_id="s1").members()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert node == {pid["j/algo-1", "s1"]}
    assert job == node | {pid["j/algo-10", "s1"]}
    assert engine == job | {pid["k/algo-1", "s1"]}


def test_kill_all_ends_descendants_and_gives_up_at_its_deadline():
    shell = subprocess.Popen(["sh", "-c", "env -i setsid sleep 61 & wait"], start_new_session=True)
    try:
        assert kill_all(Membership(session_ids=frozenset({shell.pid})), 5.0) == set()
        seconds = iter(range(100))
        unkillable = Membership(session_ids=frozenset({os.getsid(0)}))
        unkillable = type("Unkillable", (), {"members": lambda _self: {2**22 + 1}})()
        assert kill_all(unkillable, 3.0, clock=lambda: next(seconds), sleep=lambda _: None) == {
            2**22 + 1
        }
    finally:
        shell.wait()
