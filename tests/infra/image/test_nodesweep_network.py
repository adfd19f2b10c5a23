"""Timed all-reduces, and what a DistributedDataParallel exchanges: with the image's torch, and with
a torch whose clock the test controls."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nodesweep_network
import pytest
from nodesweep_network import SIZES_BYTES, Network, install, time_all_reduces

from tests.infra.image.test_nodesweep_measure import TORCHRUN, Runner, runner
from tests.infra.image.training.processes import IMAGE

MEGA = 1 << 20


class Tensor:
    """A tensor of one dimension: its values, and no more than the network needs."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __getitem__(self, chosen: slice) -> Tensor:
        return Tensor(self.values[chosen])

    def __setitem__(self, place: int, value: float) -> None:
        self.values[place] = value

    def item(self) -> float:
        return self.values[0]

    def tolist(self) -> list[float]:
        return self.values


class Torch:
    """A torch with two ranks, whose all-reduces take `latency` and `per_byte` seconds."""

    float32 = "float32"

    def __init__(self, latency: float, per_byte: float) -> None:
        self.now, self.reduced, self.largest_zeros = 0.0, list[int](), 0
        self.peer_lacks_memory = self.lacks_memory = False

        def all_reduce(tensor: Tensor, op: object = None, group: object = None) -> None:
            self.now += latency + per_byte * 4 * len(tensor.values)
            self.reduced.append(4 * len(tensor.values))
            if len(tensor.values) == 1 and self.peer_lacks_memory:
                tensor.values[0] = 1.0

        self.distributed = SimpleNamespace(
            all_reduce=all_reduce,
            ReduceOp=SimpleNamespace(MAX="max"),
            get_world_size=lambda group=None: 2 if group is None else group,
            get_backend=lambda group: "gloo",
        )

    def zeros(self, count: int, dtype: str) -> Tensor:
        assert dtype == "float32"
        self.largest_zeros = max(self.largest_zeros, count)
        return Tensor([0.0] * count)

    def frombuffer(self, memory: mmap, dtype: str) -> Tensor:
        assert dtype == "float32"
        if self.lacks_memory:
            raise RuntimeError("out of memory")
        return Tensor([0.0] * (len(memory) // 4))

    def full(self, shape: tuple[int], value: float, dtype: str) -> Tensor:
        return Tensor([value])


class Model(SimpleNamespace):
    """A DistributedDataParallel; weak references to it are possible."""


TIMED = {"world_size": 2, "all_reduce": [[4096, 0.001], [16384, 0.002], [65536, 0.003]]}


def parameter(size_bytes: int, requires_grad: bool = True, **more: str) -> SimpleNamespace:
    facts = {"device": "cpu", "dtype": "float32", **more}
    return SimpleNamespace(
        requires_grad=requires_grad, device=SimpleNamespace(type=facts["device"]),
        dtype=facts["dtype"], numel=lambda: size_bytes // 4, element_size=lambda: 4,
    )  # fmt: skip


def model(*parameters: SimpleNamespace, group: int = 2, sparse: bool = False, **more: Any) -> Model:
    values = {
        "bucket_bytes_cap": 25 * MEGA, "parameters_to_ignore": set(),
        "find_unused_parameters": False, **more,
    }  # fmt: skip
    module = SimpleNamespace(
        parameters=lambda: parameters, modules=lambda: [SimpleNamespace(sparse=sparse)]
    )
    return Model(process_group=group, module=module, require_backward_grad_sync=True, **values)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Torch]:
    def make(latency: float = 1e-4, per_byte: float = 1e-9) -> Torch:
        torch = Torch(latency, per_byte)
        clock = SimpleNamespace(perf_counter=lambda: torch.now)
        monkeypatch.setattr(nodesweep_network, "time", clock)
        return torch

    return make


def network_of(*models: SimpleNamespace, timed: Any = TIMED) -> Any:
    network = Network()
    network.timed = timed
    for each in models:
        network.watch(each)
        network.after_backward(Torch(0, 0))
    return network.facts().get("network")


@pytest.mark.parametrize(("per_byte", "largest"), [(1e-9, 16 * MEGA), (1e-7, MEGA), (1e-5, 16384)])
def test_sizes_end_at_the_first_long_all_reduce(
    clocked: Callable[..., Torch], per_byte: float, largest: int
) -> None:
    torch = clocked(per_byte=per_byte)
    timed = time_all_reduces(torch, 2)
    assert timed is not None
    assert timed["world_size"] == 2
    sizes = timed["all_reduce"]
    assert [size for size, _ in sizes] == [each for each in SIZES_BYTES if each <= largest]
    assert sizes[-1] == [largest, pytest.approx(1e-4 + per_byte * largest, abs=1e-6)]
    assert torch.now < 1.5


def test_the_largest_tensor_is_not_from_malloc(clocked: Callable[..., Torch]) -> None:
    """After a large block is freed, glibc's malloc is faster, which only one node would lack."""
    torch = clocked()
    assert time_all_reduces(torch) is not None
    assert max(torch.reduced) == 16 * MEGA
    assert torch.largest_zeros < 1000


@pytest.mark.parametrize("whose", ["lacks_memory", "peer_lacks_memory"])
def test_a_rank_without_memory_stops_all(clocked: Callable[..., Torch], whose: str) -> None:
    torch = clocked()
    setattr(torch, whose, True)
    assert time_all_reduces(torch) is None
    assert torch.reduced == [4]


def test_buckets_are_those_of_distributed_data_parallel() -> None:
    """The last parameters fill the first bucket, which holds 1 MiB; frozen ones are not sent."""
    parameters = [parameter(each * MEGA) for each in (3, 30, 20, 4, 2, 1)]
    frozen = parameter(100 * MEGA, requires_grad=False, dtype="int8")
    found = network_of(model(*parameters, frozen))
    assert [each // MEGA for each in found["bucket_bytes"]] == [1, 26, 30, 3]
    chosen = {"bucket_bytes_cap": 8 * MEGA, "bucket_bytes_cap_default": False}
    found = network_of(model(*parameters, **chosen))
    assert [each // MEGA for each in found["bucket_bytes"]] == [27, 30, 3]
    chosen["bucket_bytes_cap_list"] = [2 * MEGA, 3 * MEGA, 40 * MEGA]
    found = network_of(model(*parameters, **chosen))
    assert [each // MEGA for each in found["bucket_bytes"]] == [3, 4, 50, 3]


def test_before_pytorch_2_4_the_first_bucket_also_holds_1_mib_if_the_others_hold_less() -> None:
    parameters = [parameter(MEGA // 4) for _ in range(6)]
    found = network_of(model(*parameters, bucket_bytes_cap=MEGA // 2))
    assert found["bucket_bytes"] == [MEGA, MEGA // 2]


@pytest.mark.parametrize(
    "models",
    [
        [],
        [model(parameter(MEGA)), model(parameter(MEGA))],
        [model(parameter(MEGA), group=1)],
        [model(parameter(MEGA, device="xla"))],
        [model(parameter(MEGA), parameter(MEGA, device="cuda"))],
        [model(parameter(MEGA), parameter(MEGA, dtype="float64"))],
        [model(parameter(MEGA, requires_grad=False))],
        [model(parameter(MEGA), sparse=True)],
        [model(parameter(MEGA), parameters_to_ignore={"layer"})],
        [model(parameter(MEGA), find_unused_parameters=True)],
        [model(parameter(MEGA), mixed_precision="bfloat16")],
    ],
    ids=[
        "no model", "two models", "a part of the ranks", "XLA", "two devices", "two types",
        "all frozen", "sparse", "ignored", "unused", "mixed precision",
    ],
)  # fmt: skip
def test_other_exchanges_are_unknown(models: list[SimpleNamespace]) -> None:
    assert network_of(*models) is None


@pytest.mark.parametrize(
    "timed", [None, {}, [], {**TIMED, "world_size": 4}, {**TIMED, "all_reduce": []}]
)
def test_the_times_must_be_of_the_same_processes(timed: Any) -> None:
    assert network_of(model(parameter(MEGA)), timed=timed) is None


def test_times_of_other_processes_are_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nodesweep_network.TIMED, json.dumps(TIMED))
    found = network_of(model(parameter(MEGA)), timed=None)
    assert found == {
        "bucket_bytes": [MEGA], "all_reduce": TIMED["all_reduce"], "exchanges": 1,
    }  # fmt: skip
    monkeypatch.setenv(nodesweep_network.TIMED, "{")
    assert network_of(model(parameter(MEGA)), timed=None) is None


def test_a_pass_that_accumulates_gradients_exchanges_nothing(young: None) -> None:
    network, wrapped, torch = Network(), model(parameter(MEGA)), Torch(0, 0)
    network.timed = TIMED
    network.after_backward(torch)
    network.watch(wrapped)
    for wrapped.require_backward_grad_sync in (False, True, False, True, True):
        network.after_backward(torch)
    assert network.facts()["network"]["exchanges"] == 3
    del wrapped
    gc.collect(0)
    network.after_backward(torch)
    assert network.facts()["network"]["exchanges"] == 3


def test_a_hook_makes_the_exchange_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    class DistributedDataParallel:
        def register_comm_hook(self, state: object, hook: object) -> str:
            return "registered"

    hooks: list[Any] = []
    module = SimpleNamespace(register_module_module_registration_hook=hooks.append)
    parallel = SimpleNamespace(DistributedDataParallel=DistributedDataParallel)
    modules = SimpleNamespace(module=module)
    install(SimpleNamespace(nn=SimpleNamespace(parallel=parallel, modules=modules)))
    assert len(hooks) == 1
    monkeypatch.setattr(nodesweep_network, "network", network := Network())
    network.timed = TIMED
    hooks[0](wrapped := model(parameter(MEGA)), "module", None)  # not of this class
    network.after_backward(Torch(0, 0))
    assert network.facts() == {}
    network.watch(wrapped)
    network.after_backward(Torch(0, 0))
    assert network.facts()
    assert DistributedDataParallel().register_comm_hook(None, None) == "registered"
    assert network.facts() == {}


SCRIPT = """
    import time, torch, torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    dist.init_process_group("gloo")
    TIME
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 700), nn.Linear(700, 700), nn.Linear(700, 10))
    model = nn.parallel.DistributedDataParallel(net)
    MORE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for rows, in DataLoader(TensorDataset(torch.rand(48, 64)), batch_size=4):
        time.sleep(0.03)
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    weights = sum(each.double().sum().item() for each in net.parameters())
    print(f"{dist.get_rank()} {weights}\\n", end="")  # one write, since both print to one pipe
    if not dist.get_rank():
        sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        open("buckets", "w").write(str(sizes))
    dist.destroy_process_group()
"""

IN_PROGRAM = "import nodesweep_network as n; n.network.timed = n.time_all_reduces(torch)"


@pytest.fixture
def run_real(image_python: str, tmp_path: Path) -> Iterator[Runner]:
    yield runner(tmp_path, image_python, [IMAGE])


@pytest.mark.slow
def test_with_torch_the_exchange_is_known_and_the_weights_are_the_same(
    run_real: Runner, tmp_path: Path
) -> None:
    text = SCRIPT.replace("MORE", "pass").replace("TIME", IN_PROGRAM)
    done = run_real(text, *TORCHRUN)
    assert done.code == 0, done.stderr
    network = done.metrics["budget"][0]["network"]
    sizes = [int(each) for each in (tmp_path / "buckets").read_text().split(",")]
    assert sorted(network["bucket_bytes"]) == sorted(sizes)
    assert network["exchanges"] == 11
    assert [size for size, _ in network["all_reduce"]] == list(
        SIZES_BYTES[: len(network["all_reduce"])]
    )
    plain = run_real(text, *TORCHRUN, NODESWEEP_MEASURE="off", out="off")
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks;"
        " model.register_comm_hook(None, hooks.fp16_compress_hook)",
        "nn.parallel.DistributedDataParallel(nn.Linear(2, 2))",
    ],
    ids=["compressed gradients", "two models"],
)
def test_with_torch_other_exchanges_are_unknown(run_real: Runner, more: str) -> None:
    done = run_real(SCRIPT.replace("MORE", more).replace("TIME", IN_PROGRAM), *TORCHRUN)
    assert done.code == 0, done.stderr
    [rank] = done.metrics["budget"]
    assert "network" not in rank
