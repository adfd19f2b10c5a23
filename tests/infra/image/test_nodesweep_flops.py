"""Operations per step of training loops with the image's torch; results are as without counting."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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
            flops.install(torch)
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
        "a checkpoint repeats a forward pass that recorded no gradients",
    ),
    "own mode": (
        "def forward(x):\n"
        "    with torch.utils.flop_counter.FlopCounterMode(display=False):\n"
        "        return model(x)",
        "the program has a TorchDispatchMode of its own",
    ),
    "own mode over forward and backward": (
        "mode = torch.utils.flop_counter.FlopCounterMode(display=False)\n"
        "forward = lambda x: mode.__enter__() and model(x)\n"
        "before_step = lambda _: mode.__exit__(None, None, None) is None",
        "the program has a TorchDispatchMode of its own",
    ),
    "second derivative": (
        "backward = lambda loss: loss.backward(create_graph=True)",
        "it differentiates its gradients",
    ),
    "compiled": ('forward = torch.compile(model, backend="eager")', "torch.compile was used"),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "forward = lambda x: ThreadPoolExecutor(1).submit(model, x).result()",
        "its modules run in several threads",
    ),
    "functions": (
        "forward = lambda x: x @ model[0].weight.T",
        "a step had no forward and backward pass of modules",
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


def test_an_observed_script_is_not_counted(image_python: str, tmp_path: Path) -> None:
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
    assert done.metrics["steps"] == 6 and "flops" not in done.metrics
    plain = run(text + "print(sums)", *TORCHRUN, NODESWEEP_MEASURE="off", out="off")
    assert sorted(plain.stdout.splitlines()) == sorted(done.stdout.splitlines())
