"""Network namespaces of nodes: which addresses they reach, at which rate, and that nothing remains.

Tests that create a namespace need root, iproute2 and slirp4netns, and are skipped with the reason
elsewhere.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from sagemaker_emulator.engine.host import network, switch
from sagemaker_emulator.engine.host.connections import connected_hosts
from sagemaker_emulator.engine.host.link import LinkError, LinkLimits
from sagemaker_emulator.engine.host.network import (
    Loopback,
    OwnNetworks,
    find_network,
    loopback_ports,
    resolver_text,
)
from sagemaker_emulator.engine.host.relay import inside
from sagemaker_emulator.engine.host.switch import Switch, SwitchPlan

NOBODY = 65534


@pytest.fixture(scope="module")
def possible() -> None:
    """Skip the test, with the reason, if this machine does not allow these networks."""
    found = find_network(1, None)
    if isinstance(found, Loopback):
        pytest.skip(found.reason)


def plan_of(*ports: int, nodes: int = 2, bits_per_second: int = 10**9) -> SwitchPlan:
    return {
        "addresses": {f"algo-{n}": switch.node_address(n) for n in range(1, nodes + 1)},
        "bits_per_second": bits_per_second,
        "delay_microseconds": 0,
        "ports": list(ports),
        "environment": {},
    }


@pytest.fixture
def make(possible: None) -> Iterator[Callable[[SwitchPlan], Switch]]:
    with ExitStack() as made:
        yield lambda plan: made.enter_context(Switch(plan))


def listening(job: Switch, host: str) -> socket.socket:
    """Start a program on the node that listens on all interfaces, like torchrun's store."""
    server = inside(job.network(host), lambda: socket.create_server(("", 0)))
    server.settimeout(HANG_SECONDS)
    return server


def connect(address: tuple[str, int], seconds: float = HANG_SECONDS) -> socket.socket:
    return socket.create_connection(address, seconds)


def try_to_reach(addresses: Iterable[tuple[str, int]]) -> None:
    for address in addresses:
        with suppress(OSError):
            connect(address, 5).close()


def nobody_came(server: socket.socket) -> bool:
    """Return True if no connection waits.

    The attacker's own report is not enough, since a gateway may accept every connection.
    """
    server.setblocking(False)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return True
    finally:
        server.settimeout(HANG_SECONDS)
    return False


def own_addresses() -> list[str]:
    """Return this machine's addresses on all of its interfaces."""
    shown = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=True)
    return [entry["local"] for link in json.loads(shown.stdout) for entry in link["addr_info"]]


def test_what_a_node_listens_on_is_reached_by_its_jobs_nodes_alone(make):
    """Two simultaneous jobs use the same addresses.

    Other jobs, users and machines must not reach programs that listen on all interfaces, such as
    torchrun's store and env://.
    """
    own, other = make(plan_of()), make(plan_of(nodes=3))
    with listening(own, "algo-1") as server:
        port = server.getsockname()[1]
        hosts = ["127.0.0.1", *own_addresses(), *plan_of()["addresses"].values()]
        everywhere = [(host, port) for host in hosts]
        try_to_reach(everywhere)
        for attacker in plan_of(nodes=3)["addresses"]:
            inside(other.network(attacker), lambda: try_to_reach(everywhere))
        assert nobody_came(server)
        peer = inside(own.network("algo-2"), lambda: connect(("198.18.1.1", port)))
        peer.close()
        server.accept()[0].close()


def test_a_node_reaches_the_loopback_of_this_machine_at_the_named_ports_only(make):
    with (
        socket.create_server(("127.0.0.1", 0)) as named,
        socket.create_server(("127.0.0.1", 0)) as secret,
    ):
        for server in (named, secret):
            server.settimeout(HANG_SECONDS)
        port, hidden = named.getsockname()[1], secret.getsockname()[1]
        job = make(plan_of(port))
        client = inside(job.network("algo-2"), lambda: connect(("127.0.0.1", port)))
        peer, _ = named.accept()
        with client, peer:
            client.sendall(b"asked")
            assert peer.recv(5) == b"asked"
            peer.sendall(b"answered")
            assert client.recv(8) == b"answered"
        for host in ("127.0.0.1", switch._GATEWAY, switch.NAME_SERVER):
            inside(job.network("algo-1"), lambda host=host: try_to_reach([(host, hidden)]))
        assert nobody_came(secret)
        # nor can one node reach a port on the loopback of another
        inside(job.network("algo-1"), lambda: try_to_reach([("198.18.1.2", port)]))
        assert nobody_came(named)


def test_a_node_reaches_other_machines(make):
    """This machine's address represents a different machine, such as a server of packages, datasets
    or models.
    """
    outside = next((each for each in own_addresses() if not each.startswith("127.")), None)
    if outside is None:
        pytest.skip("this machine has no address but loopback")
    with socket.create_server((outside, 0)) as server:
        job = make(plan_of())
        inside(job.network("algo-2"), lambda: connect(server.getsockname())).close()


@pytest.mark.parametrize("megabits", [50, 200])
def test_the_rate_is_that_of_the_instance_type(make, megabits):
    """The fastest transfer takes within 15% of the time at the link's rate, including headers.

    A busy machine can be slower at times, so only the fastest of a few transfers is compared.
    """
    job = make(plan_of(bits_per_second=megabits * 10**6))
    size = megabits * 10**6 // 8 // 2  # half a second
    seconds = []
    while len(seconds) < 50 and not (seconds and min(seconds) < 0.5 * 1.15):
        seconds.append(_transfer(job, size))
    assert min(seconds) == pytest.approx(0.5 * 1514 / 1448, rel=0.15)


def _transfer(job: Switch, size: int) -> float:
    with listening(job, "algo-1") as server:
        port = server.getsockname()[1]
        client = inside(job.network("algo-2"), lambda: connect(("198.18.1.1", port)))
        peer, _ = server.accept()
        client.settimeout(HANG_SECONDS)
        with client, peer:
            begin = time.monotonic()
            sender = threading.Thread(target=client.sendall, args=(bytes(size),))
            sender.start()
            left = size
            while left:
                left -= len(peer.recv(1 << 20))
            sender.join()
            return time.monotonic() - begin


def test_no_burst_passes_by_the_rate(make):
    """Gradients are short messages, so the burst size of the link matters."""
    job = make(plan_of(bits_per_second=50 * 10**6))
    assert _transfer(job, 1_000_000) > 1_000_000 * 8 / 50e6 - 0.01


def networks() -> set[str]:
    """Return the network namespaces of all processes, and the links of this machine's own
    network."""
    found = {f"link {name}" for _, name in socket.if_nameindex()}
    for each in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(each))
        except OSError:
            continue
    return found


PROGRAM = """
import sys; sys.path.append({root!r})
import json
from sagemaker_emulator.engine.host.switch import Switch
with Switch(json.loads(sys.argv[1])) as switch:
    print("made", flush=True)
    sys.stdin.read()
"""


def helpers_of(pid: int) -> list[int]:
    """Return the running slirp4netns processes whose switch this process created."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes()
        except OSError:
            continue
        if words.startswith(b"slirp4netns") and f"/proc/{pid}/fd/".encode() in words:
            found.append(int(each.parent.name))
    return found


def test_nothing_of_it_outlives_the_process_that_made_it(possible):
    before = {each for each in networks() if each.startswith("link ")}
    program = PROGRAM.format(root=network.IMPORT_ROOT)
    maker = subprocess.Popen(
        [sys.executable, "-I", "-c", program, json.dumps(plan_of())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert maker.stdout is not None and maker.stdout.readline().startswith(b"made")
        assert len(helpers_of(maker.pid)) == 1
        # not even while the network exists
        assert {each for each in networks() if each.startswith("link ")} == before
    finally:
        maker.kill()
        maker.communicate()
    wait_until(lambda: not helpers_of(maker.pid))


def test_what_was_begun_is_undone_where_it_can_not_be_finished(possible, monkeypatch):
    monkeypatch.setattr(LinkLimits, "_rate", lambda limits: "tbf rate much")
    gc.collect()  # closes networks that other tests have left
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LinkError, match=r"^tc: "), Switch(plan_of()):
        pass
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert switch.problem(plan_of()).startswith("tc: ")


def test_connections_on_the_loopback_of_two_networks_are_not_one(make):
    """Two nodes have the same addresses and ports, but are only connected to themselves."""
    job = make(plan_of())
    program = (
        "import socket, sys\n"
        "server = socket.create_server(('127.0.0.1', 7777))\n"
        "client = socket.socket(); client.setsockopt(1, 2, 1); client.bind(('127.0.0.1', 7778))\n"
        "client.connect(('127.0.0.1', 7777)); peer, _ = server.accept()\n"
        "sys.argv[1:] == ['server'] and client.detach() or peer.detach()\n"
        "print('up', flush=True); sys.stdin.read()\n"
    )
    running = []
    try:
        for host in plan_of()["addresses"]:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-ISc", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    preexec_fn=lambda host=host: job.enter(host),
                )
            )
            assert running[-1].stdout.readline() == b"up\n"
        assert connected_hosts({f"algo-{n}": {p.pid} for n, p in enumerate(running, 1)}) == set()
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_nodes_that_meet_over_the_switch_are_connected(make):
    job = make(plan_of())
    listen = "import socket\ns = socket.create_server(('', 7777)); print('up', flush=True); "
    programs = {
        "algo-1": f"{listen}peer, _ = s.accept(); input()",
        "algo-2": "import socket\ns = socket.create_connection(('198.18.1.1', 7777)); "
        "print('up', flush=True); input()",
    }
    running = {}
    try:
        for host, program in programs.items():
            running[host] = subprocess.Popen(
                [sys.executable, "-ISc", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=lambda host=host: job.enter(host),
            )
            assert running[host].stdout.readline() == b"up\n"
        pids = {host: {process.pid} for host, process in running.items()}
        wait_until(lambda: connected_hosts(pids) == set(programs))  # the first has to accept
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def test_many_jobs_at_once(make):
    for _ in range(6):
        job = make(plan_of(nodes=4))
        with listening(job, "algo-4") as server:
            port = server.getsockname()[1]
            inside(job.network("algo-1"), lambda port=port: connect(("198.18.1.4", port))).close()


def test_the_trial_says_what_is_missing(possible):
    said: list[str] = []
    switch.main(said.append)
    problem, delay_problem = json.loads(said[0])
    assert problem is None
    assert delay_problem is None or "qdisc" in delay_problem


def test_without_the_right_nodes_meet_on_loopback_and_it_is_said(monkeypatch):
    monkeypatch.setattr(network.os, "geteuid", lambda: NOBODY)
    words = find_network(7, None).describe("ml.local.small")
    assert words.startswith("over loopback (") and "need root" in words
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    words = find_network(7, "no namespaces").describe("ml.local.small")
    assert words == "over loopback (no namespaces)"
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    found = find_network(7, None)
    assert "need tc)" in found.describe("ml.local.small")
    assert (found.address(2), found.interface, found.plan("ml.local.small", {}, [], {})) == (
        "127.0.7.2",
        "lo",
        None,
    )


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (
            "import sys; sys.stdout.write('[\"unshare: no\", null]')",
            r"over loopback \(unshare: no\)",
        ),
        ("raise SystemExit(3)", r"over loopback \(a test failed: exit code 3\)"),
        ("raise OSError('no bridge')", r"over loopback \(a test failed: OSError: no bridge\)"),
        ("import time; time.sleep(60)", r"over loopback \(.* 0\.5 s\)"),
        (
            "import sys; sys.stdout.write('[null, \"no netem\"]')",
            "1 Gbit/s between nodes .*no netem",
        ),
        (
            "import sys; sys.stdout.write('[null, null]')",
            "1 Gbit/s and 0.05 ms ",
        ),
    ],
)
def test_what_a_trial_finds_is_said(monkeypatch, trial, words):
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(network, "_TRIAL", trial)
    if "sleep" in trial:
        monkeypatch.setattr(network, "_TRIAL_SECONDS", 0.5)
    assert re.match(words, find_network(1, None).describe("ml.local.small"))


@pytest.mark.skipif(os.geteuid() != 0, reason="root can become an ordinary user, others are one")
def test_the_kernel_refuses_an_ordinary_user():
    """The kernel also refuses root in most containers. The refusal is reported."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python for everyone")
    with tempfile.TemporaryDirectory() as folder:  # readable by everyone
        os.chmod(folder, 0o755)
        package = Path(folder, "sagemaker_emulator", "engine", "host")
        package.mkdir(parents=True)
        for name in ("relay", "link", "switch"):
            shutil.copyfile(Path(switch.__file__).with_name(f"{name}.py"), package / f"{name}.py")
        program = "from sagemaker_emulator.engine.host.switch import main; main()"
        done = subprocess.run(
            ["setpriv", f"--reuid={NOBODY}", "--clear-groups", python, "-c", program],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": folder},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
    refusal = "can't create a network namespace: Operation not permitted"
    assert done.stdout == json.dumps([refusal, None]), done.stderr


def test_a_plan_is_that_of_the_instance_type():
    addresses = {"algo-1": "198.18.1.1"}
    mark = {"NODESWEEP_STATE": "x"}
    made = OwnNetworks().plan("ml.local.small100m", addresses, [{}], mark)
    assert made == {
        "addresses": addresses,
        "bits_per_second": 100_000_000,
        "delay_microseconds": 500,
        "ports": [],
        "environment": mark,
    }
    without = OwnNetworks("no netem").plan("ml.local.small100m", addresses, [{}], mark)
    assert without is not None and without["delay_microseconds"] == 0


def test_the_ports_that_nodes_are_told_of():
    environment = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:4570",
        "PIP_INDEX_URL": "https://localhost:8443/simple",
        "HTTP_PROXY": "http://{}@127.0.0.1:3128/".format("user:word"),
        "MLFLOW": "see http://127.0.0.1:99999 and http://127.0.0.1:0",
        "ANY": "http://0.0.0.0:8000/a",
        "INIT": "tcp://127.0.0.1:23456",
        "ELSEWHERE": "http://127.0.0.10:1 http://192.0.2.1:80 http://127.0.0.1",
    }
    assert loopback_ports([environment, {}]) == [3128, 4570, 8000, 8443]


def test_a_resolver_keeps_what_is_not_its_address():
    text = "nameserver 127.0.0.53\nsearch example.org\n\nnameserver\t::1\noptions edns0\n"
    kept = "nameserver 198.18.0.3\nsearch example.org\n\noptions edns0\n"
    assert resolver_text("198.18.0.3", text) == kept


def test_addresses_are_different_and_in_the_subnet():
    addresses = [switch.node_address(number) for number in range(1, 1001)]
    assert len(set(addresses)) == 1000
    assert addresses[0] == "198.18.1.1" and all(each.startswith("198.18.") for each in addresses)
    assert not {switch._GATEWAY, switch.NAME_SERVER} & set(addresses)
