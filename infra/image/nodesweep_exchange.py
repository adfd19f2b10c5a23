"""Time all-reduces between a job's nodes before the job's own program starts.

If NODESWEEP_TIME_ALL_REDUCES is 1, nodesweep_start.py (on SageMaker) or the batch script (on Slurm)
calls this on all nodes. Nothing is sent in the program's processes: as many processes as the
training will have form a gloo group of their own, and are gone before the program starts. If
anything fails, the program starts without the times, after DEADLINE_SECONDS at the latest.

An emulated node that runs a job's own code has its CPU quota from the start, so the all-reduces are
timed under the same quota as the training. The price is a later start of the program: with a quota
of 0.1 vCPU, by 21 s for one process per node and 31 s for two, most of it for importing torch. It
is not part of the train time.

It ran under sagemaker-training 5.1.4 with torch 2.13 on one machine, and on Slurm 22.05; never on
AWS, where the security group of a job's VPC must let its nodes reach each other on all ports.
"""

import contextlib
import ipaddress
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import nodesweep_network

ASKED_BY = "NODESWEEP_TIME_ALL_REDUCES"
PORT = 7779  # on SageMaker; the toolkit uses 7777
DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_KILL_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_CERTAIN = {"sagemaker_mpi_enabled", "sagemaker_torch_distributed_enabled"}
_PROCESSES = "sagemaker_mpi_num_of_processes_per_host"  # for torchrun, too
_NOT_INHERITED = ("COVERAGE_", "LD_PRELOAD", "LOCAL_", "MASTER_", "RANK", "TORCH", "WORLD_SIZE")
_SET = {"NODESWEEP_MEASURE": "off", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def time_on_sagemaker(job):
    """Time all-reduces on a node of a SageMaker job, and set nodesweep_network.TIMED.

    Args:
        job: sagemaker_training's Environment.
    """
    with _without_failure():
        hosts, processes = sorted(job.hosts), processes_on_sagemaker(job)
        if len(hosts) == 1 or processes is None:
            return
        node, interface = hosts.index(job.current_host), job.network_interface_name
        timed = time_among(node, len(hosts), processes, hosts[0], PORT, interface)
        os.environ[nodesweep_network.TIMED] = json.dumps(timed)


def processes_on_sagemaker(job):
    """Return how many processes the toolkit will start on a node.

    None on nodes with accelerators and with other launchers than torchrun and mpirun. As in
    runner.py of sagemaker-training 5.1.4, a node without accelerators has one process by default.
    """
    options = job.additional_framework_parameters
    enabled = {name for name, value in options.items() if name.endswith("_enabled") and value}
    if job.num_gpus or job.num_neurons or enabled - _CERTAIN:
        return None
    return int(options.get(_PROCESSES) or 1) if enabled else 1


def time_on_slurm(file, processes, port):
    """Time all-reduces in a task of a Slurm job; the first node writes the times to a file.

    Args:
        file: The path of the file.
        processes: The number of processes per node, or torchrun's "auto".
        port: A port of the first node.
    """
    with _without_failure():
        if processes == "auto":  # torch 2.13 counts the CPUs of its process, older ones all
            processes = os.cpu_count()
            if len(os.sched_getaffinity(0)) != processes:
                raise RuntimeError("torchrun's number of processes is unknown")
        node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
        timed = time_among(node, nodes, int(processes), os.environ["MASTER_ADDR"], int(port))
        if node == 0:
            with open(f"{file}.part", "w", encoding="utf-8") as stream:
                json.dump(timed, stream)
            os.replace(f"{file}.part", file)


def network_interface(master_address, environment, existing):
    """Return the network interface for gloo, or None to let it choose.

    A copy of the function in training/cluster.py, because each file is also used without the other.
    """
    if "GLOO_SOCKET_IFNAME" in environment:
        return environment["GLOO_SOCKET_IFNAME"]
    if _is_loopback(master_address) and "lo" in existing:
        return "lo"
    named = environment.get("SM_NETWORK_INTERFACE_NAME")
    return named if named in existing else None


def time_among(
    node, nodes, processes, master_address, port, interface=None, deadline_seconds=DEADLINE_SECONDS
):
    """Return nodesweep_network.time_all_reduces() of new processes on all nodes.

    All nodes must call it with the same arguments, except for their own number.

    Args:
        node: The number of this node; rank 0 is on node 0, at `master_address`.
        nodes: The number of nodes.
        processes: The number of processes per node.
        master_address: The host name or address of node 0.
        port: A free port of node 0.
        interface: The network interface that the platform names, if any.
        deadline_seconds: Kill the processes after this time.

    Raises:
        RuntimeError: A process failed, or the deadline passed.
    """
    ends_at = time.monotonic() + deadline_seconds
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    children, (reader, writer) = [], os.pipe()
    try:
        for local_rank in range(processes):
            plan = {
                "rank": node * processes + local_rank,
                "is_first": local_rank == 0,
                "world_size": nodes * processes,
                "address": master_address,
                "port": port,
                "interface": interface,
                "ends_at": ends_at,
                "parent": os.getpid(),
                "writer": writer,
            }
            command = [sys.executable, os.path.abspath(__file__), "child", json.dumps(plan)]
            children.append(
                subprocess.Popen(
                    command, cwd="/", env=kept | _SET, pass_fds=[writer], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip
        _wait(children, ends_at)
    finally:
        os.close(writer)
        _end(children)
        with open(reader, "rb") as stream:
            os.set_blocking(reader, False)
            reports = [json.loads(line) for line in (stream.read() or b"").splitlines()]
    for each in reports:
        if "all_reduce" in each:
            return each
    unknown = f"a process crashed, or not all had joined after {deadline_seconds:g} s"
    raise RuntimeError(reports[0]["error"] if reports else unknown)


def _wait(children, ends_at):
    """Wait until all children have ended, one has failed, or the deadline has passed."""
    running = list(children)
    while running and time.monotonic() < ends_at:
        for each in list(running):
            # not reaped, so that _end() kills no other process of this number
            ended = os.waitid(os.P_PID, each.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                running.remove(each)
                if ended.si_status:
                    return
        time.sleep(_POLL_SECONDS)


def _end(children):
    """Kill the children, each with its process group, and reap them."""
    for each in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
    for each in children:
        each.wait(_KILL_SECONDS)


@contextlib.contextmanager
def _without_failure():
    try:
        yield
    except Exception as error:
        print(f"nodesweep: all-reduces were not timed: {error}", file=sys.stderr, flush=True)


def _is_loopback(host):
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False  # not resolvable yet


def _run_child(plan):
    """Time all-reduces in a process of its own, which ends with its parent or the deadline."""
    seconds = plan["ends_at"] - time.monotonic()  # the clock of all processes of a machine
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, math.ceil(seconds) + 1))
    with contextlib.suppress(Exception):  # in a Python without ctypes, the alarm remains
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != plan["parent"]:  # it was killed before
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _time_in_group(plan)
    except BaseException as error:
        [text, *_] = str(error).splitlines() or [""]
        _report(plan, {"error": f"{type(error).__name__}: {text[:200]}"})
        os._exit(1)
    os._exit(0)  # without gloo's threads, which can abort a process that exits


def _time_in_group(plan):
    from datetime import timedelta

    import torch
    from torch import distributed

    existing = [name for _, name in socket.if_nameindex()]
    environment = {**os.environ, "SM_NETWORK_INTERFACE_NAME": plan["interface"]}
    interface = network_interface(plan["address"], environment, existing)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    rank, world_size = plan["rank"], plan["world_size"]
    timeout = timedelta(seconds=max(1.0, plan["ends_at"] - time.monotonic()))
    store = distributed.TCPStore(
        plan["address"], plan["port"], world_size, rank == 0, timeout=timeout
    )
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
    )
    timed = nodesweep_network.time_all_reduces(torch)
    if timed is None:
        raise MemoryError("the largest tensor does not fit")
    if plan["is_first"]:
        _report(plan, timed)
    with contextlib.suppress(Exception):  # rank 0, whose store it is, may be gone
        store.set(f"timed by {rank}", "")
        store.wait([f"timed by {each}" for each in range(world_size)])  # others may still receive


def _report(plan, facts):
    os.write(plan["writer"], json.dumps(facts).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "child":
        _run_child(json.loads(sys.argv[2]))
    time_on_slurm(*sys.argv[1:])
