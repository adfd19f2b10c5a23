"""Links of containers are limited from outside at the right rate, and other links are left alone.

Tests that create a link need root and iproute2, and are otherwise skipped with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from sagemaker_emulator.engine.host import link, network
from sagemaker_emulator.engine.host.link import LinkLimits
from sagemaker_emulator.engine.host.network import ContainerLinks

# A "container" on a bridge of a machine that is itself a network of its own: the links of the
# machine that runs the test stay as they are.
PROLOGUE = """
import sys; sys.path.append({root!r})
import json, socket, threading, time
from sagemaker_emulator.engine.host.link import *
from sagemaker_emulator.engine.host.relay import inside
made = [make_network() for _ in range(2)]
container, elsewhere = map(network_file, made)
call(OWN_NETWORK, "ip", ["link set lo up", "link add bridge type bridge", "link set bridge up",
    "address add 198.18.0.1/24 dev bridge"])
def connect_to_here():
    call(OWN_NETWORK, "ip", [f"link add host0 type veth peer name eth0 netns {{container}}",
        "link set host0 master bridge up"])
    call(container, "ip", ["link set eth0 up", "address add 198.18.0.2/24 dev eth0"])
def queueing(where, device):
    return [each["kind"] for each in
        json.loads(call(where, "tc", [f"qdisc show dev {{device}}"], "-json"))]
"""


@pytest.fixture(scope="module")
def possible() -> None:
    """Skip the test, with the reason, if this machine does not allow links."""
    if os.geteuid() != 0:
        pytest.skip("limits on links need root")
    if problem := ContainerLinks.find().problem:
        pytest.skip(problem)


def on_a_machine_of_its_own(source: str) -> Any:
    program = PROLOGUE.format(root=network.IMPORT_ROOT) + source
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-ISc", program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRANSFER = """
connect_to_here()
for where, devices in ((OWN_NETWORK, ("bridge", "host0")), (container, ("eth0",))):
    call(where, "ip", [f"link set {device} mtu MTU" for device in devices])
limit_container(container, LinkLimits(50 * 10**6, 0))
size = 1_250_000  # 0.2 s
def transfer(server_in, address, client_in):
    server = inside(server_in, lambda: socket.create_server((address, 0)))
    client = inside(client_in, lambda: socket.create_connection(server.getsockname(), 300))
    peer, _ = server.accept()
    peer.settimeout(300)
    begin = time.monotonic()
    threading.Thread(target=client.sendall, args=(bytes(size),)).start()
    left = size
    while left:
        left -= len(peer.recv(1 << 20))
    return time.monotonic() - begin
def shortest(*ends):
    seconds = []
    while len(seconds) < 4 or (len(seconds) < 50 and min(seconds) > 0.22):
        seconds.append(transfer(*ends))
    return min(seconds)
print(json.dumps([
    shortest(container, "198.18.0.2", OWN_NETWORK),
    shortest(OWN_NETWORK, "198.18.0.1", container),
]))
"""


@pytest.mark.parametrize("mtu", [1500, 9001])
def test_a_containers_link_has_its_rate_in_both_directions(possible, mtu):
    """A transfer can take longer on a busy machine, but never less time."""
    for seconds in on_a_machine_of_its_own(TRANSFER.replace("MTU", str(mtu))):
        assert seconds == pytest.approx(0.2 * (mtu + 14) / (mtu - 52), rel=0.15)


NOT_HERE = """
call(container, "ip", [f"link add eth0 index 5 type veth peer name far index 77 netns {elsewhere}"])
if BAIT:
    call(OWN_NETWORK, "ip", ["link add bait index 77 type BAIT"])
try:
    limit_container(container, LinkLimits(10**9, 0))
except LinkError as error:
    print(json.dumps([str(error), BAIT and queueing(OWN_NETWORK, "bait")]))
"""


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("", "the other end of a container's eth0 is not in this machine's network"),
        ("bridge", "bait is not the other end of a container's eth0"),
        ("veth", "bait is not the other end of a container's eth0"),
    ],
)
def test_no_other_interface_of_the_machine_is_ever_limited(possible, kind, refusal):
    """Every network namespace counts its own interface indexes, so an index can match an unrelated
    interface of the machine.
    """
    source = NOT_HERE.replace("type BAIT", f"type {kind}").replace("BAIT", repr(kind))
    said, queueing = on_a_machine_of_its_own(source)
    assert said == refusal
    assert not queueing


def test_a_container_without_eth0_is_an_error(possible):
    source = """
try:
    limit_container(container, LinkLimits(10**9, 0))
except LinkError as error:
    print(json.dumps(str(error)))
"""
    assert on_a_machine_of_its_own(source).startswith("ip: ")


def test_a_limit_that_the_kernel_refuses_is_an_error(possible):
    source = """
connect_to_here()
try:
    limit_container(container, LinkLimits(0, 0))
except LinkError as error:
    print(json.dumps([str(error), queueing(OWN_NETWORK, "host0")]))
"""
    said, queueing = on_a_machine_of_its_own(source)
    assert said.startswith("tc: ")
    assert queueing == ["noqueue"]


def test_a_delay_comes_before_the_rate_on_the_way_to_a_node():
    """tc-netem(8) combines the two in this order; this is untested on a kernel without netem."""
    first, second = LinkLimits(10**8, 500).to_node("port1")
    assert first == "qdisc add dev port1 root handle 1: netem delay 500us limit 100000"
    assert second.startswith("qdisc add dev port1 parent 1:1 handle 10: tbf rate 100000000bit ")


def test_the_trial_says_what_is_missing(possible):
    problem, delay_problem = link.limit_problems()
    assert problem is None
    assert delay_problem is None or "qdisc" in delay_problem


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ContainerLinks(None), "0.1 Gbit/s and 0.5 ms between nodes"),
        (
            ContainerLinks(None, "no netem"),
            "0.1 Gbit/s between nodes (without a delay: no netem)",
        ),
        (ContainerLinks("limits need tc"), "no limit between nodes (limits need tc)"),
    ],
)
def test_what_limits_a_containers_link_is_said(found, words):
    assert found.describe("ml.local.small100m") == words


def test_links_get_the_limits_of_the_type_where_that_works(monkeypatch):
    limited: list[tuple[str, LinkLimits]] = []
    monkeypatch.setattr(
        link, "limit_container", lambda file, limits: limited.append((str(file), limits))
    )
    ContainerLinks("limits need tc").limit("ml.local.small50m", [1])
    ContainerLinks(None, "no netem").limit("ml.local.small50m", [2])
    ContainerLinks(None).limit("ml.local.small50m", [3])
    assert limited == [
        ("/proc/2/ns/net", LinkLimits(50_000_000, 0)),
        ("/proc/3/ns/net", LinkLimits(50_000_000, 500)),
    ]


def test_missing_programs_are_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    assert ContainerLinks.find().problem == "limits need tc"
