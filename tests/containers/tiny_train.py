#!/opt/venv/bin/python
"""`train` of the tiny image: runs the function named by the hyperparameter `program`."""

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

CONFIG = Path("/opt/ml/input/config")
PROGRAM = json.loads((CONFIG / "hyperparameters.json").read_text())["program"]
RESOURCES = json.loads((CONFIG / "resourceconfig.json").read_text())
HOSTS, HERE = RESOURCES["hosts"], RESOURCES["current_host"]


def status(name):
    """Return a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def look():
    """Log what a node sees, and leave a file in each output folder."""
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/_nodesweep/status") as answer:
        endpoint_runs = json.load(answer)["running"]
    limit = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    limit = limit if limit.exists() else Path("/sys/fs/cgroup/memory.max")
    seen = {
        "host": socket.gethostname(),
        "addresses": {host: socket.gethostbyname(host) for host in HOSTS},
        "interface_is_there": RESOURCES["network_interface_name"] in os.listdir("/sys/class/net"),
        "pid": os.getpid(),
        "capabilities": int(status("CapEff"), 16),
        "no_new_privileges": status("NoNewPrivs"),
        "memory_limit": int(limit.read_text()),
        "cpus": len(os.sched_getaffinity(0)),
        "environment": {
            name: os.environ.get(name)
            for name in ("IMAGE_SAYS", "MULTI", "TRAINING_JOB_NAME", "HOME")
        },
        "code": Path("/opt/ml/code/note").read_text().strip(),
        "endpoint_runs": endpoint_runs,
    }
    print("facts=" + json.dumps(seen), flush=True)
    Path("/opt/ml/model", f"{HERE}.txt").write_text("model")
    Path("/opt/ml/output/data", f"{HERE}.txt").write_text("data")


def talk():
    """Have algo-1 receive a message from every other node on the toolkit's port."""
    if HOSTS[0] == HERE:
        with socket.create_server(("", 7777)) as server:
            for _ in HOSTS[1:]:
                connection, _ = server.accept()
                print(f"heard {connection.recv(100).decode()}", flush=True)
        return
    for _ in range(100):
        try:
            with socket.create_connection((HOSTS[0], 7777)) as connection:
                connection.sendall(HERE.encode())
                return
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit("algo-1 was not to be reached")


def send():
    """Send 2.5 MB to algo-1 from the other node, three times, and log the least seconds."""
    if HOSTS[0] == HERE:
        with socket.create_server(("", 7777)) as server:
            for _ in range(3):
                connection, _ = server.accept()
                while connection.recv(1 << 20):
                    pass
                connection.close()
        return
    taken = []
    while len(taken) < 3:
        try:
            connection = socket.create_connection((HOSTS[0], 7777))
        except ConnectionRefusedError:
            time.sleep(0.1)
            continue
        begin = time.monotonic()
        connection.sendall(bytes(2_500_000))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # the end
        taken.append(time.monotonic() - begin)
    print(f"seconds={min(taken)}", flush=True)


def fail():
    """Fail on the last node while the others wait for a peer that does not come."""
    if HOSTS[-1] != HERE:
        time.sleep(300)
    Path("/opt/ml/output/failure").write_text("the data is empty")
    sys.exit(3)


def eat():
    """Allocate more memory than the instance has; the kernel kills PID 1 of the container."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


def burn():
    """Use a CPU for 12 s."""
    end = time.monotonic() + 12
    while time.monotonic() < end:
        sum(range(10_000))


def wait_for_signal():
    """Run a child that saves its state on SIGTERM; `train` ignores it, as the toolkit does."""
    program = (
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n    pathlib.Path('/opt/ml/model/saved').write_text('x')\n"
        "    print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(300)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def stubborn():
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(300)


def hold():
    """Sleep until stopped."""
    print("ready", flush=True)
    time.sleep(300)


globals()[PROGRAM]()
