"""The parts of a process's train time, by a clock that the test controls, and with the image's
torch."""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.infra.image.test_nodesweep_measure import TORCHRUN, Run, Runner, runner
from tests.infra.image.training.processes import IMAGE

OPTIMIZER = SimpleNamespace(
    param_groups=[{"params": [SimpleNamespace(device=SimpleNamespace(type="cpu"))]}]
)
ON_GPU, ON_XPU = (
    SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device=SimpleNamespace(type=name))]}])
    for name in ("cuda", "xpu")
)


class Process:
    """A process whose time passes only in `spend`."""

    def __init__(self, module: Any) -> None:
        self.module, self.now = module, 0.0
        self.budget = module.Budget()
        self.callbacks: list[Callable[[], None]] = []
        self.hooks: list[Callable[[Any], None]] = []
        self.optimizer = OPTIMIZER

    def spend(self, seconds: float) -> None:
        self.now += seconds

    def fetch(self, loader: object, seconds: float) -> None:
        began = self.now
        self.spend(seconds)
        self.budget.fetched(loader, began)

    def backward(self, gradients: float, reduction: float, has_graph: bool = True) -> None:
        def register(hook: Callable[[Any], None]) -> SimpleNamespace:
            self.hooks.append(hook)
            return SimpleNamespace(remove=self.hooks.clear)

        loss = SimpleNamespace(grad_fn=1 if has_graph else None, register_hook=register)
        if self.budget.begin_backward(loss, self.callbacks.append):
            for hook in self.hooks:
                hook(None)
            self.spend(gradients)
            while self.callbacks:
                self.callbacks.pop()()
            self.spend(reduction)
            self.budget.end_backward()
            assert self.hooks == []
        else:
            self.spend(gradients + reduction)

    def step(self, seconds: float, optimizer: object = None) -> None:
        self.budget.begin_step()
        self.spend(seconds)
        self.budget.end_step(optimizer or self.optimizer, self.now)

    def facts(self, training: list[object], world_size: int | None = 2) -> Any:
        return self.budget.facts(0.0, training, world_size, 1)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    spec = importlib.util.spec_from_file_location("budget_of_test", IMAGE / "nodesweep_budget.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = Process(module)
    clock = SimpleNamespace(perf_counter=lambda: made.now)
    for each in (module, sys.modules[module.CpuLaps.__module__]):
        monkeypatch.setattr(each, "time", clock)
    return made


def train(process: Process, loader: object, steps: int = 10, step: float = 0.1) -> None:
    """Spend `step` seconds on each step, a fifth of them on the reduction of the gradients."""
    for _ in range(steps):
        process.fetch(loader, 0.1 * step)
        process.spend(0.2 * step)
        process.backward(0.3 * step, 0.2 * step)
        process.step(0.1 * step)
        process.spend(0.1 * step)


def test_the_parts_sum_to_the_time(process: Process) -> None:
    train(process, "loader", 11)
    parts = process.facts(["loader"])["seconds"]
    assert parts == pytest.approx(
        {
            "start": 0.09,
            "data": 0.1,
            "forward": 0.2,
            "backward": 0.3,
            "communication": 0.2,
            "optimizer": 0.1,
            "evaluation": 0.0,
            "checkpoint": 0.0,
            "other": 0.1,
        }
    )
    assert sum(parts.values()) == pytest.approx(process.now - 0.01)


def test_one_process_has_no_communication(process: Process) -> None:
    train(process, "loader", 11)
    parts = process.facts(["loader"], world_size=1)["seconds"]
    assert (parts["backward"], parts["communication"]) == (0.5, 0)


def test_short_steps_are_split_one_in_four(process: Process) -> None:
    train(process, "loader", 101, step=0.025)
    facts = process.facts(["loader"])
    assert facts["split_every"] == 4
    assert facts["seconds"]["backward"] == pytest.approx(0.75)
    assert facts["seconds"]["communication"] == pytest.approx(0.5)
    assert facts["communication_seconds"][-4:].count(0) == 3


def test_very_short_steps_are_not_split(process: Process) -> None:
    train(process, "loader", 101, step=0.018)
    assert process.facts(["loader"]) is None
    assert process.budget.missing(2) == "steps under 20 ms are not split"
    assert not process.budget.begin_backward(None, process.callbacks.append)


def test_evaluations_checkpoints_and_collectives_are_parts_of_their_own(process: Process) -> None:
    train(process, "loader")
    for _ in range(5):
        process.fetch("held out", 0.1)
        process.spend(0.3)
    save = process.module._timed(lambda: process.spend(0.7), "checkpoint", bool)
    reduce = process.module._timed(lambda: process.spend(0.4), "collectives", bool)
    process.module.budget = process.budget
    save()
    reduce()
    train(process, "loader", 2)
    parts = process.facts(["loader"])["seconds"]
    assert (parts["evaluation"], parts["checkpoint"]) == pytest.approx((2.0, 0.7))
    assert parts["communication"] == pytest.approx(0.4 + 11 * 0.02)
    assert sum(parts.values()) == pytest.approx(process.now - 0.01)


def test_a_pause_is_no_part_and_makes_no_step_longer(process: Process) -> None:
    for _ in range(5):
        train(process, "loader", 5, step=0.018)
        process.budget.pause()
        process.module._timed(lambda: process.spend(0.3), "collectives", bool)()
        process.budget.resume()
    assert process.budget.missing(2) == "steps under 20 ms are not split"
    process.budget.reset()
    train(process, "loader", 6)
    before = process.now
    process.budget.pause()
    process.spend(5.0)
    process.budget.resume()
    assert process.now - before == 5.0
    train(process, "loader", 5)
    parts = process.facts(["loader"])["seconds"]
    assert parts == {**parts, "communication": pytest.approx(0.2), "other": pytest.approx(0.1)}


def test_all_of_a_checkpoint_is_one_part(process: Process) -> None:
    train(process, "loader")
    process.module.budget = process.budget
    process.fetch("loader", 0.1)
    with process.budget.whole("checkpoint"):
        process.module._timed(lambda: process.spend(0.2), "collectives", bool)()
        process.spend(0.5)
    process.spend(0.2)
    process.step(0.1)
    parts = process.facts(["loader"])["seconds"]
    assert parts["checkpoint"] == pytest.approx(0.7)
    assert parts["forward"] == pytest.approx(9 * 0.02 + 0.2)


def test_a_frameworks_own_save_is_one_part(process: Process) -> None:
    class Trainer:
        def save_checkpoint(self, path: str) -> str:
            process.spend(0.2)
            process.module._timed(lambda: process.spend(0.5), "checkpoint", bool)()
            process.module._timed(lambda: process.spend(0.1), "collectives", bool)()
            return path

    process.module.budget = process.budget
    before = Trainer.save_checkpoint
    process.module.watch_saves(SimpleNamespace(__name__="pytorch_lightning", Trainer=Trainer))
    process.module.watch_saves(SimpleNamespace(__name__="accelerate"))  # of an unknown version
    assert Trainer.save_checkpoint.__wrapped__ is before  # type: ignore[attr-defined]
    train(process, "loader")
    assert Trainer().save_checkpoint("last.ckpt") == "last.ckpt"
    train(process, "loader", 1)
    parts = process.facts(["loader"])["seconds"]
    assert parts["checkpoint"] == pytest.approx(0.8)
    assert sum(parts.values()) == pytest.approx(process.now - 0.01)


def test_a_failing_collective_fails_as_before(process: Process) -> None:
    train(process, "loader")
    process.module.budget = process.budget

    def fail() -> None:
        raise RuntimeError("peer closed")

    with pytest.raises(RuntimeError, match="peer closed"):
        process.module._timed(fail, "collectives", bool)()
    assert not process.budget.is_inside


def test_accumulation_and_a_loss_without_a_graph(process: Process) -> None:
    train(process, "loader")
    process.fetch("loader", 0.1)
    process.backward(0.3, 0.0)
    process.fetch("loader", 0.1)
    process.backward(0.5, 0.0, has_graph=False)
    process.step(0.1)
    parts = process.facts(["loader"], world_size=1)["seconds"]
    assert parts["backward"] == pytest.approx(9 * 0.05 + 0.8)


def test_an_iterator_of_losses_is_left_to_the_pass(process: Process) -> None:
    train(process, "loader")
    losses = iter([SimpleNamespace(grad_fn=1)])
    assert process.budget.begin_backward(losses, process.callbacks.append)
    assert len(list(losses)) == 1


def test_many_steps_are_kept_as_sums(process: Process) -> None:
    train(process, "loader", 4101)
    facts = process.facts(["loader"])
    assert facts["steps_per_value"] == 4
    assert len(facts["communication_seconds"]) == 1025
    assert facts["communication_seconds"] == pytest.approx([0.08] * 1025)


def test_other_threads_are_not_counted(process: Process) -> None:
    train(process, "loader", 11)
    before = process.facts(["loader"])
    thread = threading.Thread(target=train, args=(process, "loader", 5))
    thread.start()
    thread.join()
    assert process.facts(["loader"]) == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda process: process.step(0.1, ON_XPU),
        lambda process: process.step(0.1, SimpleNamespace()),
        lambda process: process.budget.turn_off("a reason"),
    ],
    ids=["on another device", "an unknown optimizer", "off"],
)
def test_what_cannot_be_split_is_unknown(
    process: Process, spoil: Callable[[Any], None], snapshot: object
) -> None:
    spoil(process)
    train(process, "loader")
    assert process.facts(["loader"]) is None
    assert process.budget.missing(2) == snapshot


class Event(SimpleNamespace):
    """A CUDA event; weak references to it count those alive."""


class Cuda:
    """A GPU whose stream passes an event `lag` events after the process has recorded it."""

    def __init__(self, process: Process, lag: int) -> None:
        self.process, self.lag = process, lag
        self.recorded = self.passed = 0
        self.last = sys.maxsize  # the last event that it ever passes
        self.is_capturing = False
        self._events: list[weakref.ref[Event]] = []

    def alive(self) -> int:
        return sum(event() is not None for event in self._events)

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def Event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = Event()
        self._events.append(weakref.ref(event))

        def record() -> None:
            self.recorded += 1
            event.number, event.at = self.recorded, self.process.now

        def elapsed_time(end: SimpleNamespace) -> float:
            assert max(event.number, end.number) <= max(self.passed, self.recorded - self.lag)
            return 1000 * float(end.at - event.at)

        def synchronize() -> None:
            assert event.number <= self.last, "the GPU never passes it"
            self.passed = max(self.passed, event.number)

        event.record, event.elapsed_time, event.synchronize = record, elapsed_time, synchronize
        event.query = lambda: event.number <= self.recorded - self.lag
        return event


@pytest.mark.parametrize("lag", [0, 40])
def test_on_a_gpu_the_parts_are_times_of_its_stream(
    process: Process, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    """The process issues all work immediately, so its own clock would measure none of it."""
    cuda = Cuda(process, lag)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(process.module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    process.optimizer = ON_GPU
    train(process, "loader", 11)
    save = process.module._timed(lambda: process.spend(0.7), "checkpoint", bool)
    monkeypatch.setattr(process.module, "budget", process.budget)
    save()
    process.step(0.0)
    facts = process.facts(["loader"])
    assert facts["seconds"] == pytest.approx(
        {
            "start": 0.09,
            "data": 0.2,  # from the end of the last step, whatever the process did meanwhile
            "forward": 0.2,
            "backward": 0.3,
            "communication": 0.2,
            "optimizer": 0.1,
            "evaluation": 0.0,
            "checkpoint": 0.7,
            "other": 0.01,
        }
    )
    assert facts["communication_seconds"] == pytest.approx([0.02] * 10 + [0.0])
    process.budget.pause()
    process.spend(9)
    process.budget.resume()
    process.step(0.5)
    assert process.facts(["loader"])["seconds"]["optimizer"] == pytest.approx(0.6)


def test_the_end_waits_for_no_mark_after_the_last_step(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective that another rank has left hangs on the GPU."""
    cuda = Cuda(process, 40)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    process.optimizer = ON_GPU
    train(process, "loader", 11)
    cuda.last = cuda.recorded
    monkeypatch.setattr(process.module, "budget", process.budget)
    process.module._timed(lambda: process.spend(9), "collectives", bool)()
    facts = process.facts(["loader"])
    assert facts["seconds"]["optimizer"] == pytest.approx(0.1)
    assert facts["seconds"]["communication"] == pytest.approx(0.2)


def test_a_forked_process_frees_no_event_of_its_parent(
    young: None, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fork of a fork, too."""
    cuda = Cuda(process, 40)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    process.optimizer = ON_GPU
    train(process, "loader", 5)
    waiting = cuda.alive()
    assert waiting > 20
    for generation in range(2):  # what survives the first collection is in generation 1
        process.budget.reset()
        gc.collect(generation)
        assert cuda.alive() == waiting


def test_a_captured_graph_ends_the_split(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(process, 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    process.optimizer = ON_GPU
    train(process, "loader", 5)
    cuda.is_capturing = True
    train(process, "loader", 5)
    assert process.facts(["loader"]) is None
    assert process.budget.missing(2) == "a part of its steps was captured as a CUDA graph"


def test_an_error_of_the_gpu_ends_the_split(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(process, 0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    process.optimizer = ON_GPU
    train(process, "loader", 5)
    monkeypatch.delattr(Cuda, "Event")
    train(process, "loader", 5)
    assert process.facts(["loader"]) is None
    assert process.budget.missing(2) == "nodesweep_laps.py failed with AttributeError"


def test_without_steps_backward_passes_or_a_world_it_is_unknown(
    process: Process, snapshot: object
) -> None:
    missing = [process.budget.missing(2)]
    assert process.facts([]) is None
    for _ in range(5):
        process.step(0.1)
    missing.append(process.budget.missing(2))
    assert process.facts([]) is None
    train(process, "loader")
    assert process.facts(["loader"], world_size=None) is None
    assert [*missing, process.budget.missing(None)] == snapshot
    assert process.budget.missing(2) is None


# With the image's torch

SCRIPT = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Samples(Dataset):
        def __len__(self):
            return 128
        def __getitem__(self, index):
            LOADER
            return torch.full((64,), index / 128.0), index % 4

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    data = Samples()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for samples, labels in loader:
            STEP
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(samples), labels)
            loss.backward()
            optimizer.step()
    sys.stdout.write(f"loss {loss.item()!r}\\n")
    dist.destroy_process_group()
"""


def budgets(done: Run, folder: Path) -> dict[int, dict[str, float]]:
    files = [json.loads(path.read_text()) for path in folder.glob("nodesweep-budget-*.json")]
    ranks = [*done.metrics["budget"], *files]
    return {each["rank"]: each["seconds"] for each in ranks}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "step", "largest"),
    [
        ("time.sleep(0.025)", "", ("data", "data")),
        ("", "dist.get_rank() and time.sleep(0.2)", ("communication", "forward")),
        ("", "dist.barrier(); dist.get_rank() or time.sleep(0.2); dist.barrier()",
         ("forward", "communication")),
    ],
    ids=["slow loader", "a rank that sleeps", "a rank that the others wait for"],
)  # fmt: skip
def test_with_torch_the_cause_is_the_largest_part(
    image_python: str, tmp_path: Path, loader: str, step: str, largest: tuple[str, str]
) -> None:
    """There are few steps with long causes: on a busy machine the delays of steps differ, and the
    first takes seconds."""
    run_real: Runner = runner(tmp_path, image_python, [IMAGE])
    text = SCRIPT.replace("LOADER", loader or "pass").replace("STEP", step or "pass")
    done = run_real(text, *TORCHRUN)
    assert done.code == 0, done.stderr
    by_rank = budgets(done, tmp_path / "out")
    of_steps = [
        {part: seconds for part, seconds in by_rank[rank].items() if part != "start"}
        for rank in (0, 1)
    ]
    assert tuple(max(parts, key=parts.__getitem__) for parts in of_steps) == largest, by_rank
    assert sum(by_rank[0].values()) == pytest.approx(done.metrics["train_seconds"], rel=0.001)
    plain = run_real(text, *TORCHRUN, NODESWEEP_MEASURE="off", out="off")
    assert sorted(done.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert plain.files == []


@pytest.mark.slow
def test_with_lightning_a_checkpoint_is_all_of_its_save(image_python: str, tmp_path: Path) -> None:
    """Collecting the state takes longer here than everything else; torch.save comes after it."""
    text = """
        import sys, time, logging, warnings
        import torch
        from pytorch_lightning import LightningModule, Trainer
        from torch.utils.data import DataLoader, TensorDataset

        class Module(LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 4)
            def training_step(self, batch, index):
                time.sleep(0.03)
                return self.layer(batch[0]).sum()
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.001)
            def on_save_checkpoint(self, checkpoint):
                time.sleep(1.5)

        loader = DataLoader(TensorDataset(torch.zeros(32, 8)), batch_size=8)
        trainer = Trainer(
            max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=".",
        )
        trainer.fit(Module(), loader)
    """
    run_real: Runner = runner(tmp_path, image_python, [IMAGE])
    done = run_real(text)
    assert done.code == 0, done.stderr
    parts = budgets(done, tmp_path / "out")[0]
    assert parts["checkpoint"] >= 2 * 1.5  # the third comes after the last step
    of_steps = {part: seconds for part, seconds in parts.items() if part != "start"}
    assert max(of_steps, key=of_steps.__getitem__) == "checkpoint", parts


@pytest.mark.slow
def test_with_torch_compiled_collectives_and_backward_run_as_before(
    image_python: str, tmp_path: Path
) -> None:
    run_real: Runner = runner(tmp_path, image_python, [IMAGE])
    text = """
        import time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        weight = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        @torch.compile(backend="eager", fullgraph=True)
        def doubled(values):
            dist.all_reduce(values)
            return values * 2
        for _ in range(120):
            time.sleep(0.025)
            optimizer.zero_grad()
            (weight * weight).sum().backward()
            work = dist.all_reduce(weight.grad, async_op=True)
            work.wait()
            optimizer.step()
        print(doubled(torch.ones(2)).tolist(), weight.tolist())
        dist.destroy_process_group()
    """
    torchrun = (*TORCHRUN[:-1], "--nproc-per-node=1")
    done = run_real(text, *torchrun)
    plain = run_real(text, *torchrun, NODESWEEP_MEASURE="off", out="off")
    assert (done.code, done.stdout) == (0, plain.stdout), done.stderr
    assert done.metrics["budget"][0]["seconds"]["communication"] > 0
