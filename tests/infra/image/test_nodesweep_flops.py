"""Operations per step of training loops with the image's torch; counting does not change their
results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nodesweep_flops import Flops

from tests.infra.image.test_nodesweep_measure import (
    DEADLINE_SECONDS,
    IMAGE,
    TORCHRUN,
    Runner,
    runner,
)

pytestmark = pytest.mark.slow
BATCH, LAYERS = 32, ((64, 512), (512, 512), (512, 10))
FIRST, FORWARD = 2 * BATCH * 64 * 512, sum(2 * BATCH * rows * columns for rows, columns in LAYERS)
# A backward pass takes twice as many, but needs no gradient of the input.
STEP = 3 * FORWARD - FIRST
LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
optimizer = torch.optim.Adam(model.parameters())
forward = model
def backward(loss):
    loss.backward()
def before_step(step):
    return True
CHANGE
for step in range(6):
    backward(forward(torch.randn(32, 64)).float().square().mean())
    if before_step(step):
        optimizer.step()
    optimizer.zero_grad()
sums = [float(each.double().sum()) for each in model.parameters()]
"""
# The loops in forked processes of one that has loaded torch, with and without counting. It has also
# loaded what the first optimizer of a process loads, in 1.3 s of CPU time.
LOOPS = f"""
import json, os, sys, time
sys.path.insert(0, {str(IMAGE)!r})
import nodesweep_budget, torch, torch.utils.checkpoint, torch.utils.flop_counter
from nodesweep_flops import flops
from torch.optim.optimizer import register_optimizer_step_post_hook
torch.set_num_threads(1)
torch.optim.Adam([torch.zeros(1)])
def end(optimizer, args, kwargs):
    nodesweep_budget.budget.end_step(optimizer, time.perf_counter())
for name, text in json.loads(sys.argv[1]).items():
    for is_counted in (True, False):
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            continue
        if is_counted:
            nodesweep_budget.install(torch, bool)
            register_optimizer_step_post_hook(end)
        scope = {{}}
        exec(text, scope)
        print(json.dumps([name, flops.facts() if is_counted else None, scope["sums"]]), flush=True)
        os._exit(0)
"""
CHECKPOINT = "forward = lambda x: torch.utils.checkpoint.checkpoint(model, x{}, use_reentrant={})"
# What a loop does differently, and the operations of its steps or why there are none.
CHANGES: Mapping[str, tuple[str, int | str]] = {
    "plain": ("", STEP),
    "accumulation": (
        "backward = lambda loss: (loss.backward(), model(torch.ones(32, 64)).mean().backward())",
        2 * STEP,
    ),
    "skipped step": ("before_step = lambda step: step != 1", STEP),
    "evaluation": ("before_step = lambda _: [torch.no_grad()(model)(torch.ones(512, 64))]", STEP),
    "checkpoint": (CHECKPOINT.format("", False), STEP),
    "caught error": (
        "def before_step(_):\n"
        "    try:\n"
        "        model(torch.randn(3, 3))\n"
        "    except RuntimeError:\n"
        "        return True",
        STEP,
    ),
    "two optimizers": (
        "other = torch.optim.SGD(model[2].parameters(), lr=0.01)\n"
        "before_step = lambda _: other.step() is None",
        STEP,
    ),
    "reentrant checkpoint": (
        CHECKPOINT.format(".requires_grad_()", True),
        "the operations of CheckpointFunction are not known",
    ),
    "own dispatch mode": (
        "mode = torch.utils.flop_counter.FlopCounterMode(display=False)\n"
        "forward = lambda x: mode.__enter__() and model(x)\n"
        "before_step = lambda _: mode.__exit__(None, None, None) is None",
        STEP,
    ),
    "compiled after a step": (
        # torch.compile refuses to work below a dispatch mode, such as torch.utils.flop_counter's
        "compiled = torch.compile(lambda x: x + 1, backend='eager', fullgraph=True)\n"
        "forward = lambda x: compiled(model(x))",
        STEP,
    ),
    "second derivative": (
        "backward = lambda loss: loss.backward(create_graph=True)",
        "a backward pass keeps its graph, or ends before the parameters",
    ),
    "an iterator of losses": (
        "backward = lambda loss: torch.autograd.backward(each for each in [loss])",
        "a backward pass does not start from a list of tensors",
    ),
    "gradients beside a backward pass": (
        "def before_step(_):\n"
        "    return torch.autograd.grad(model(torch.ones(2, 64)).sum(), model[4].bias)",
        "it calls torch.autograd.grad",
    ),
    "a product into a view": (
        "w = nn.Parameter(torch.ones(64, 10))\n"
        "def forward(x):\n"
        "    out = model(x).clone()\n"
        "    out[:16].addmm_(x[:16], w)\n"
        "    return out",
        "the operations of torch::autograd::CopySlices are not known",
    ),
    "a copy into a view": (
        "def forward(x):\n    out = torch.zeros(64, 10)\n    out[:32] = model(x)\n    return out",
        STEP,
    ),
    "frozen factors": (
        "for each in model:\n"
        "    if isinstance(each, nn.Linear):\n"
        "        each.weight.requires_grad_(False)\n"
        "forward = lambda x: model[0](x)",
        "the shapes of a product of frozen factors are not known",
    ),
    "some gradients": (
        "backward = lambda loss: loss.backward(inputs=list(model[4].parameters()))",
        "a backward pass keeps its graph, or ends before the parameters",
    ),
    "compiled": ('forward = torch.compile(model, backend="eager")', STEP),
    "compiled backward": (
        'forward = torch.compile(model, backend="aot_eager")',
        "the operations of CompiledFunction (torch.compile) are not known",
    ),
    "scripted": (
        "forward = torch.jit.script(model)",
        "the operations of torch::jit::(anonymous namespace)::DifferentiableGraphBackward are not "
        "known",
    ),
    "own function": (
        "class Own(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x * 2)\n"
        "    backward = staticmethod(lambda ctx, slope: slope * 2)\n"
        "forward = lambda x: Own.apply(model(x))",
        "the operations of Own are not known",
    ),
    "recurrent": (
        "model = nn.LSTM(64, 8)\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "forward = lambda x: model(x)[0]",
        "the operations of MkldnnRnnLayerBackward0 are not known",
    ),
    "forward passes in threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "forward = lambda x: ThreadPoolExecutor(1).submit(model, x).result()",
        STEP,
    ),
    "backward passes in threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "backward = lambda loss: ThreadPoolExecutor(1).submit(loss.backward).result()",
        "its backward passes and steps are in several threads",
    ),
    "functions": ("forward = lambda x: x @ model[0].weight.T", 2 * FIRST),
    "frozen": ("model[2].weight.requires_grad_(False)", STEP - 2 * BATCH * 512 * 512),
    "no products": (
        "forward = lambda x: x.sum() * model[4].bias",
        "it multiplies no matrices",
    ),
    "no backward": (
        "def backward(loss):\n"
        "    parameters = list(model.parameters())\n"
        "    for each, slope in zip(parameters, torch.autograd.grad(loss, parameters)):\n"
        "        each.grad = slope",
        "it calls torch.autograd.grad",
    ),
    "too many operators": (
        "import nodesweep_flops\nnodesweep_flops.MOST_NODES = 20",
        "its steps have more than 20 operators",
    ),
    "two steps": ("before_step = lambda step: step in (3, 4)", STEP),
    "two steps and a part of one": ("before_step = lambda step: step < 2", STEP),
    "one step": (
        "before_step = lambda step: step == 5",
        "it made too few optimizer steps",
    ),
}


@pytest.fixture(scope="module")
def loops(image_python: str) -> Mapping[str, list[tuple[dict[str, Any] | None, list[float]]]]:
    texts = {name: LOOP.replace("CHANGE", change) for name, (change, _) in CHANGES.items()}
    done = subprocess.run(
        [image_python, "-c", LOOPS, json.dumps(texts)], text=True, capture_output=True,
        timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    found: dict[str, list[tuple[dict[str, Any] | None, list[float]]]] = {}
    for name, facts, sums in map(json.loads, done.stdout.splitlines()):
        found.setdefault(name, []).append((facts, sums))
    assert found.keys() == CHANGES.keys(), done.stderr
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_operations_of_a_step_or_the_reason_there_are_none(
    loops: Mapping[str, list[tuple[dict[str, Any] | None, list[float]]]], name: str
) -> None:
    (facts, sums), (_, plain) = loops[name]
    expected = CHANGES[name][1]
    if isinstance(expected, str):
        assert facts == {"not_counted": expected}
    else:
        assert facts == {"per_step": expected, "dtype": "float32"}
    assert sums == plain


# Models whose operations torch.utils.flop_counter knows, with the shape of their input.
PRODUCTS = {
    "convolutions": (
        "nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 6, 1), nn.Flatten(),"
        " nn.LazyLinear(3))",
        (2, 3, 9, 9),
    ),
    "1 dimension": ("nn.Conv1d(4, 8, 3)", (2, 4, 9)),
    "3 dimensions": ("nn.Conv3d(2, 8, 3)", (2, 2, 9, 9, 9)),
    "no batch": ("nn.Conv2d(4, 8, 3)", (4, 9, 9)),
    "transposed": (
        "nn.Sequential(nn.ConvTranspose2d(5, 4, 3, stride=2, padding=1, output_padding=1),"
        " nn.ConvTranspose2d(4, 4, 4, dilation=2))",
        (2, 5, 7, 6),
    ),
    "einsum": ("Of(lambda x, w: torch.einsum('bij,jk->bik', x, w))", (2, 3, 5)),
    "baddbmm": ("Of(lambda x, w: torch.baddbmm(x, x, x @ w))", (2, 5, 5)),
    "broadcast": ("Of(lambda x, w: x @ w)", (2, 3, 5)),
    "cell": ("nn.GRUCell(4, 5)", (2, 4)),
    "tied weights": ("Of(lambda x, w: x @ w @ w.T)", (2, 5)),
    "autocast": ("Of(torch.autocast('cpu', torch.bfloat16)(torch.mm))", (2, 5)),
    "gradient penalty": (
        "Of(lambda x, w: with_slope((x.requires_grad_() @ w).tanh() @ w, x))",
        (2, 5),
    ),
}
COUNTS = f"""
import json, sys
sys.path.insert(0, {str(IMAGE)!r})
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from nodesweep_flops import Flops
class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(5, 5))
    def forward(self, x):
        return self.function(x, self.weight)
def with_slope(y, x):
    return y + torch.autograd.grad(y.sum(), x, create_graph=True)[0]
def step(model, shape, flops):
    loss = model(torch.randn(*shape)).float().square().mean()
    flops.before_backward((loss,), {{}})
    loss.backward()
    flops.after_step(None)
for name, (text, shape) in json.loads(sys.argv[1]).items():
    model, flops = eval(text), Flops()
    flops.install(torch)
    for _ in range(3):
        with FlopCounterMode(display=False) as mode:
            step(model, shape, flops)
    print(json.dumps([name, flops.facts(), mode.get_total_flops()]))
queries, keys, values = (torch.ones(2, 4, *each, requires_grad=True) for each in SHAPES)
flops = Flops()
flops.install(torch)
for _ in range(3):
    loss = nn.functional.scaled_dot_product_attention(queries, keys, values).sum()
    flops.before_backward((), {{"tensors": [loss]}})
    flops.after_step(None)
print(json.dumps(["attention", flops.facts(), ATTENTION]))
"""
# Lengths and sizes of queries, keys and values, for 2 samples with 4 heads. flop_counter does not
# know the CPU's kernel. There are two products, each with two gradients.
SHAPES = ((16, 8), (12, 8), (12, 6))
ATTENTION = 3 * 2 * (2 * 4 * 16 * 12) * (8 + 6)


def test_products_take_as_many_operations_as_flop_counter_says(image_python: str) -> None:
    text = COUNTS.replace("SHAPES", str(SHAPES)).replace("ATTENTION", str(ATTENTION))
    done = subprocess.run(
        [image_python, "-c", text, json.dumps(PRODUCTS)], text=True, capture_output=True,
        timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in found] == [*PRODUCTS, "attention"]
    for name, facts, expected in found:
        dtype = "bfloat16" if name == "autocast" else "float32"
        assert (name, facts) == (name, {"per_step": expected, "dtype": dtype})


@pytest.mark.parametrize("graph", [SimpleNamespace(), SimpleNamespace(Node=object)])
def test_a_torch_without_shapes_in_its_graphs_is_named(graph: SimpleNamespace) -> None:
    flops = Flops()
    flops.install(SimpleNamespace(__version__="2.0.1", autograd=SimpleNamespace(graph=graph)))
    for _ in range(3):
        flops.before_backward((None,), {})
        flops.after_step(None)
    assert flops.facts() == {
        "not_counted": "operators are counted from PyTorch 2.5 on, not in 2.0.1"
    }


def test_an_observed_script_is_counted(image_python: str, tmp_path: Path) -> None:
    run: Runner = runner(tmp_path, image_python, [IMAGE])
    ddp = (
        'torch.distributed.init_process_group("gloo")\n'
        "forward = nn.parallel.DistributedDataParallel(model)\n"
        "data = torch.utils.data.DataLoader(torch.randn(6 * 32, 64), batch_size=32)"
    )
    text = LOOP.replace("CHANGE", ddp).replace("step in range(6)", "step, x in enumerate(data)")
    text = text.replace("torch.randn(32, 64)", "x")
    done = run(text + "print(sums)", *TORCHRUN)
    assert done.code == 0, done.stderr
    assert done.metrics["steps"] == 6
    assert done.metrics["flops"] == {"per_step": STEP, "dtype": "float32"}
    plain = run(text + "print(sums)", *TORCHRUN, NODESWEEP_MEASURE="off", out="off")
    assert sorted(plain.stdout.splitlines()) == sorted(done.stdout.splitlines())
