"""Connections between the programs of nodes, with real processes and sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from sagemaker_emulator.engine.host.connections import connected_hosts

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1]
                              else socket.AF_INET, dualstack_ipv6=":" in sys.argv[1])
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
print("accepted", flush=True)
sys.stdin.read()
"""
CONNECT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.read()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a process, which is killed at the end of the test.

    `start(program, argument, name=file name)`
    """
    running: list[subprocess.Popen[str]] = []

    def run(program: str, argument: str, name: str = "train.py") -> subprocess.Popen[str]:
        path = tmp_path / name
        path.write_text(program)
        process = subprocess.Popen(
            [sys.executable, str(path), argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    stream: IO[str] | None = process.stdout
    assert stream is not None
    return stream.readline().strip()


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_both_ends_of_a_connection_are_connected(start: Start, address: str) -> None:
    server = start(LISTEN, address)
    client = start(CONNECT, said(server))
    assert (said(client), said(server)) == ("connected", "accepted")
    nodes = {"algo-1": {server.pid}, "algo-2": {client.pid}, "algo-3": set[int]()}
    assert connected_hosts(nodes) == {"algo-1", "algo-2"}


def test_a_program_connected_to_itself_or_to_the_platform_is_alone(start: Start) -> None:
    server = start(LISTEN, "127.0.0.1")
    client = start(CONNECT, said(server))
    assert said(client) == "connected"
    assert connected_hosts({"algo-1": {server.pid, client.pid}, "algo-2": set[int]()}) == set()
    assert connected_hosts({"algo-1": {client.pid}, "algo-2": set[int]()}) == set()


def test_launchers_that_meet_are_no_programs_that_do(start: Start) -> None:
    server = start(LISTEN, "127.0.0.1", name="torchrun")
    client = start(CONNECT, said(server), name="torchrun")
    assert said(client) == "connected"
    assert connected_hosts({"algo-1": {server.pid}, "algo-2": {client.pid}}) == set()


def test_a_process_that_has_ended_has_no_connection(start: Start) -> None:
    ended = start("", "")
    ended.wait()
    assert connected_hosts({"algo-1": {ended.pid}, "algo-2": {2**22 + 1}}) == set()
