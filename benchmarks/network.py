"""Compare the time of transfers between emulated nodes with the rate of their instance type.

    .venv/bin/python -m benchmarks.network [--types ml.local.small100m] [--counts 2 8]
        [--megabytes 25] [--repeats 5] [--torch-python PYTHON] [--output FILE.json]

All nodes simultaneously send to the next node over TCP; with --torch-python (a Python with torch)
they also all-reduce the same number of bytes with gloo. The nodes have their CPU quota, and use
either the emulated links of their instance type or this machine's loopback. The expected time is
the number of bytes (times 2(N-1)/N for a ring all-reduce), with TCP's headers, divided by the rate
of the instance type. Exit code 1 if a median is more than 2% below the expected time, or if this
machine cannot give nodes network namespaces.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.dated_result import store_result
from benchmarks.emulation import Bench, machine
from sagemaker_emulator.engine.host.capacity import (
    LINK_BY_INSTANCE_TYPE,
    VCPUS_BY_INSTANCE_TYPE,
    machine_cores,
)
from sagemaker_emulator.engine.host.network import Loopback, Network, OwnNetworks

FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
"""Size of a full TCP segment with timestamps on Ethernet, and of the payload in it."""
TIMER_SHARE = 0.02
"""Fraction by which a median may be below the expected time, because of bursts and the clock."""
TRANSFERS = """
import re, socket, threading
size, repeats = int(os.environ["SIZE"]), int(os.environ["REPEATS"])
hosts = sorted(resources["hosts"], key=lambda name: int(re.split("[-.]", name)[-1]))
successor = hosts[(rank + 1) % len(hosts)]
server = socket.create_server((socket.gethostbyname(resources["current_host"]), 7777))
def receive():
    peer, _ = server.accept()
    buffer = bytearray(1 << 20)
    while peer.recv_into(buffer): pass
    peer.sendall(b"x")
    peer.close()
def stream():
    thread = threading.Thread(target=receive)
    thread.start()
    with socket.create_connection((successor, 7777)) as connection:
        begin = time.monotonic()
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        seconds = time.monotonic() - begin
    thread.join()
    return seconds
data = bytes(size)
if "RENDEZVOUS" in os.environ:
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    gradients = torch.ones(size // 4)
    rendezvous = "file://" + os.environ["RENDEZVOUS"]
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(hosts))
    dist.all_reduce(torch.ones(1000))
def all_reduce():
    dist.barrier()
    begin = time.monotonic()
    dist.all_reduce(gradients)
    return time.monotonic() - begin
wait_for_go()
seconds = {"stream": [stream() for _ in range(repeats)]}
if "RENDEZVOUS" in os.environ:
    seconds["all-reduce"] = [all_reduce() for _ in range(repeats)]
    dist.destroy_process_group()
done(**seconds)
"""


@dataclass(frozen=True)
class Measured:
    """One kind of transfer; `seconds` is the median over repeats of the slowest node's time."""

    instance_type: str
    network: str
    nodes: int
    transfer: str
    seconds: float
    least_seconds: float
    expected_seconds: float | None
    """Time at the rate of the instance type; None on loopback, which has no limited rate."""

    @property
    def ratio(self) -> float | None:
        """Ratio of the median to the expected time; None on loopback."""
        return self.seconds / self.expected_seconds if self.expected_seconds else None


def expected_seconds(transfer: str, size_bytes: int, nodes: int, gbit_per_second: float) -> float:
    """Return the time of a transfer at this rate, with TCP's headers."""
    times = 2 * (nodes - 1) / nodes if transfer == "all-reduce" else 1.0
    return times * size_bytes * 8 * FRAME_BYTES / PAYLOAD_BYTES / (gbit_per_second * 1e9)


def main(argv: Sequence[str]) -> int:
    """Measure, print and store the result."""
    options = _parse(argv)
    started = time.perf_counter()
    at_first = machine()
    cells: list[Measured] = []
    for instance_type in options.types:
        with tempfile.TemporaryDirectory() as folder:
            cells += _of_type(instance_type, options, Path(folder))
    details = {"megabytes": options.megabytes, "repeats": options.repeats, "machine": at_first}
    store_result(options.output, started, cells, **details)
    fast = [cell for cell in cells if cell.ratio is not None and cell.ratio < 1 - TIMER_SHARE]
    for cell in fast:
        print(f"FASTER THAN THE LINE: {cell}")
    return 1 if fast else 0


def _of_type(instance_type: str, options: argparse.Namespace, folder: Path) -> list[Measured]:
    python = options.torch_python or sys.executable
    bench = Bench(folder, python, TRANSFERS, instance_type)
    own = bench.engine._network
    if not isinstance(own, OwnNetworks):
        raise SystemExit(f"cannot give nodes network namespaces: {own.describe(instance_type)}")
    networks: dict[str, Network] = {"own": own, "loopback": Loopback(7, "for this benchmark")}
    size_bytes = int(options.megabytes * 1e6)
    cells = []
    order = [(name, nodes) for name in networks for nodes in options.counts]
    for name, nodes in random.Random(instance_type).sample(order, len(order)):
        bench.engine._network = networks[name]
        environment = {"SIZE": str(size_bytes), "REPEATS": str(options.repeats)}
        if options.torch_python:
            environment["RENDEZVOUS"] = f"{folder}/rendezvous-{name}-{nodes}"
        said, _ = bench.run(nodes, nodes, environment)
        for transfer in said[0]:
            slowest = [
                max(repeat) for repeat in zip(*(each[transfer] for each in said), strict=True)
            ]
            gbit_per_second = LINK_BY_INSTANCE_TYPE[instance_type].gbit_per_second
            expected = expected_seconds(transfer, size_bytes, nodes, gbit_per_second)
            cells.append(
                Measured(
                    instance_type=instance_type,
                    network=name,
                    nodes=nodes,
                    transfer=transfer,
                    seconds=median(slowest),
                    least_seconds=min(slowest),
                    expected_seconds=expected if name == "own" else None,
                )
            )
            print(_line(cells[-1]), flush=True)
    bench.engine.close()
    return cells


def _line(cell: Measured) -> str:
    line = f"{cell.instance_type} {cell.network:8} N={cell.nodes} {cell.transfer:10}"
    line += f" {cell.seconds:.2f} s (least {cell.least_seconds:.2f})"
    if cell.ratio is not None:
        line += f", line alone {cell.expected_seconds:.2f} s, ratio {cell.ratio:.2f}"
    return line


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--types",
        choices=sorted(LINK_BY_INSTANCE_TYPE),
        nargs="+",
        default=["ml.local.micro", "ml.local.small200m", "ml.local.small100m"],
        help="instance types",
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 8], help="node counts")
    parser.add_argument("--megabytes", type=float, default=25.0, help="size of each transfer")
    parser.add_argument("--repeats", type=int, default=5, help="transfers of each kind")
    parser.add_argument("--torch-python", help="a Python with torch, for the all-reduce")
    parser.add_argument("--output", type=Path, help="write the result as JSON")
    options = parser.parse_args(argv)
    for name in options.types:
        if max(options.counts) * VCPUS_BY_INSTANCE_TYPE[name] > machine_cores() + 1e-9:
            parser.error(
                f"--counts: {max(options.counts)} nodes of {name} do not fit on this machine"
            )
    if min(options.counts) < 2:
        parser.error("--counts: a transfer needs at least 2 nodes")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
