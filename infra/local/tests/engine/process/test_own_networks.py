"""Jobs whose nodes are in network namespaces: who can connect to them, which addresses they reach,
at which rate, and that the job's logs report this."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from infra.local.tests.engine.engine_bench import TIMES, Bench, OneImage, once
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host.network import Loopback
from sagemaker_emulator.engine.host.port_lock import training_slot
from sagemaker_emulator.engine.host.process_tree import Membership
from sagemaker_emulator.engine.process.engine import ProcessEngine

STORE = """
server = socket.create_server(("", 7777))
print("listens", flush=True)
peers = []
while True:
    peers.append(server.accept()[0])
    peers[-1].sendall(b"the store")
"""
"""Listens like torchrun's store and env://: on all interfaces, without a password."""


MEET = """
while host != "algo-1":
    try:
        peer = socket.create_connection(("algo-1", 7777))
    except OSError:
        time.sleep(0.1)
        continue
    interface = resources["network_interface_name"]
    there = interface in [name for _, name in socket.if_nameindex()]
    print(peer.recv(9).decode(), interface, there, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def own(bench: Bench) -> Bench:
    if isinstance(bench.engine._network, Loopback):
        pytest.skip(bench.engine._network.reason)
    return bench


@pytest.fixture
def second(own: Bench, tmp_path, monkeypatch) -> Iterator[Bench]:
    """Another platform on this machine, whose jobs do not wait for jobs of the first platform."""
    slot = functools.partial(training_slot, address=f"\0test-second-{tmp_path}")
    engine = ProcessEngine(
        tmp_path / "second", OneImage(own.image), "http://127.0.0.1:1", times=TIMES
    )
    monkeypatch.setattr(engine, "_turn", lambda job, *waits: slot(*waits))
    yield Bench(engine, own.image, replace(own.job, job_name="job-b"))
    engine.close()


class Running:
    """A job that runs in a thread, and is stopped when the test ends."""

    def __init__(self, bench: Bench, **job: object) -> None:
        self.bench = bench
        self._thread = threading.Thread(target=bench.run, kwargs={"seconds": 600, **job})
        self._thread.start()

    def says(self, host: str, text: str) -> None:
        wait_until(lambda: (host, text) in self.bench.lines)

    def end(self) -> None:
        self.bench.stop.set()
        self._thread.join()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(bench: Bench, **job: object) -> Running:
        running.append(Running(bench, **job))
        return running[-1]

    yield begin
    for each in running:
        each.end()


def own_addresses() -> list[str]:
    shown = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=True)
    return [entry["local"] for link in json.loads(shown.stdout) for entry in link["addr_info"]]


ATTACK = """
found = []
for address in {addresses!r}:
    try:
        found.append(socket.create_connection((address, 7777), timeout=2).recv(9))
    except OSError:  # or a gateway that takes every connection, and says nothing
        pass
print("reached", found, flush=True)
"""


@once
def test_what_nodes_listen_on_is_their_jobs_alone(own, second, start):
    """Other users, other machines, and a job of another platform with the same addresses try to
    connect.
    """
    own.program(STORE)
    job = start(own)
    job.says("algo-1", "listens")
    addresses = ["127.0.0.1", *own_addresses(), own.nodes[0].address]
    attack = ATTACK.format(addresses=addresses)
    here = subprocess.run(
        ["python3", "-c", f"import socket\n{attack}"], capture_output=True, text=True, check=True
    )
    assert here.stdout == "reached []\n"
    own.program(attack)  # the platforms share the image, and the first job has started
    assert second.run().failed_host is None
    assert second.said("algo-1") == ["reached []"]


@once
def test_peers_meet_by_name_and_are_seen_to(own, start):
    own.program(MEET + STORE)
    start(own, nodes=2).says("algo-2", "the store eth0 True")
    connected = {host: each.is_connected for host, each in own.engine.usage(own.job).items()}
    assert connected == {"algo-1": True, "algo-2": True}


@once
def test_nodes_reach_the_platform_at_its_own_url(own, tmp_path):
    """Nodes also reach servers on this machine that the job's config names, such as a package index
    or a tracking server, but no others.
    """
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "key").write_text("of the platform")
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")
    )
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as platform,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as tracker,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as secret,
    ):
        for server in (platform, tracker, secret):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        own.engine._endpoint_url = f"http://127.0.0.1:{platform.server_port}"
        own.program(f"""
            import urllib.request
            for url in (os.environ["AWS_ENDPOINT_URL"], os.environ["TRACKER"]):
                print(urllib.request.urlopen(url + "/key").read().decode())
            try:
                socket.create_connection(("127.0.0.1", {secret.server_port}), timeout=300)
                print("reached")
            except OSError as error:
                print(type(error).__name__)
        """)
        own.run(environment={"TRACKER": f"http://localhost:{tracker.server_port}"})
        for server in (platform, tracker, secret):
            server.shutdown()
    assert own.said("algo-1") == ["of the platform", "of the platform", "ConnectionRefusedError"]


@once
def test_the_rate_of_a_type_is_between_its_nodes(own):
    """5 MB at 50 Mbit/s take 0.8 s plus headers, or longer on a busy machine, but never less."""
    own.program("""
        if host == "algo-1":
            with socket.create_server(("", 7777)) as server:
                peer, _ = server.accept()
            while peer.recv(1 << 20):
                pass
            peer.send(b"x")
            sys.exit()
        while True:
            try:
                peer = socket.create_connection(("algo-1", 7777))
                break
            except OSError:
                time.sleep(0.05)
        begin = time.monotonic()
        peer.sendall(bytes(5_000_000)); peer.shutdown(socket.SHUT_WR); peer.recv(1)
        print(time.monotonic() - begin)
    """)
    seconds = []
    while len(seconds) < 50 and not (seconds and min(seconds) < 0.92):
        own.lines.clear()
        own.run(nodes=2, instance_type="ml.local.small50m")
        seconds.append(float(own.said("algo-2")[0]))
    assert min(seconds) == pytest.approx(0.8 * 1514 / 1448, rel=0.15)


@once
def test_a_job_says_how_its_nodes_are_connected(own):
    said = own.engine.isolation("ml.local.small100m")
    assert ", 0.1 Gbit/s" in said and "between nodes" in said
    own.engine._network = Loopback(7, "networks of their own need root")
    assert "over loopback" in own.engine.isolation("ml.local.small100m")


@once
def test_a_network_that_can_not_be_made_is_the_platforms_fault(own, monkeypatch):
    """A job can be retried after an error of the platform."""
    plan = own.engine._network.plan

    def broken(*arguments):
        return plan(*arguments) | {"addresses": {"algo-1": "no address"}}

    monkeypatch.setattr(type(own.engine._network), "plan", lambda network, *given: broken(*given))
    result = own.run()
    assert result.failure_reason.startswith("InternalServerError: ")
    assert Membership(state_id=own.engine._state_id).members() == set()
