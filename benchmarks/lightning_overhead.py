"""Measure Lightning's overhead: the training program against an equivalent bare PyTorch loop.

    PYTHON_OF_THE_IMAGE benchmarks/lightning_overhead.py --data DIR [--repeats 20]
        [--output FILE.json]

The benchmark needs the image's environment (infra/image/requirements.txt). The program and the loop
train the same model from the same seed on the same batches with the same optimizer, and read the
loss equally often; short runs alternate, so that other load affects both alike. The steps after the
warm-up are pooled over all runs of each kind. The result is the ratio of the two medians, with a
95% interval from resampling pairs of runs, and the ratio of the 10th percentiles, which are the
least disturbed steps. Exit code 1 if the ratio of the medians is not below --limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

IMAGE = Path(__file__).resolve().parents[1] / "infra" / "image"
# The benchmark of configs/local.yaml on one node, reduced to what affects a step.
WORKLOAD = {
    "model": "ranking_mlp",
    "hidden-size": 128,
    "layers": 7,
    "global-batch-size": 32768,
    "passes-per-epoch": 320,
    "epochs": 1,
    "optimizer": "adamw",
    "learning-rate": 0.004,
    "checkpoint": False,
    "tensorboard": False,
}
WARMUP_STEPS = 4  # of 14


@dataclass(frozen=True)
class Sample:
    """One run: the wall-clock seconds of its steps after the warm-up, and its final accuracy."""

    step_seconds: list[float]
    accuracy: float


Pair = tuple[Sample, Sample]  # (Lightning, bare)


def main(argv: Sequence[str]) -> int:
    """Measure, then print and store the result."""
    options = _parse(argv)
    sys.path.insert(0, str(IMAGE))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from training.imports import import_lightning

    import_lightning()
    with tempfile.TemporaryDirectory() as folder:
        pairs: list[Pair] = []
        for repeat in range(options.repeats + 1):
            order = (run_lightning, run_bare) if repeat % 2 else (run_bare, run_lightning)
            samples = {run: run(options.data, Path(folder)) for run in order}
            if repeat:  # the first pair warms up caches and allocators
                pairs.append((samples[run_lightning], samples[run_bare]))
    result = summarise(pairs)
    print(json.dumps(result["ratio"], indent=1))
    if options.output:
        from training.files import write_text_atomically

        write_text_atomically(
            options.output, json.dumps({**result, "machine": describe_machine()}, indent=1) + "\n"
        )
    return 0 if result["ratio"]["medians"]["value"] < options.limit else 1


def run_lightning(data: Path, folder: Path) -> Sample:
    """Run the Lightning training program, which measures its own steps."""
    from training.run import run

    run(_arguments(data, folder))
    metrics = json.loads((folder / "metrics.json").read_text())
    return Sample(metrics["step_seconds"][WARMUP_STEPS:], metrics["final_metric"]["value"])


def run_bare(data: Path, folder: Path) -> Sample:
    """Run the same batches, model, optimizer and evaluation in a plain loop."""
    import torch
    from torch.nn import functional
    from training.cluster import cluster_from_environment
    from training.data.batching import plan_batch
    from training.data.module import TableData
    from training.model.models import build_model
    from training.model.module import build_optimizer

    arguments, cluster = _arguments(data, folder), cluster_from_environment({})
    batch = plan_batch(1, None, 1, arguments.global_batch_size)
    torch.manual_seed(arguments.seed)
    table = TableData(arguments, cluster, batch, folder / "prepared")
    table.prepare_data()
    table.setup("fit")
    model = build_model(arguments, table.sample_shape, table.classes)
    optimizer = build_optimizer(arguments, model.parameters())
    seconds: list[float] = []
    accuracy = 0.0
    for _ in range(arguments.epochs):
        model.train()
        started = time.perf_counter()
        for features, labels in table.train_dataloader():
            loss = functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stopped = time.perf_counter()
            seconds.append(stopped - started)
            started = stopped
        model.eval()
        with torch.inference_mode():
            right = [
                (model(x).argmax(dim=1) == y).float().mean().item()
                for x, y in table.val_dataloader()
            ]
        accuracy = sum(right) / len(right)
    return Sample([round(value, 6) for value in seconds[WARMUP_STEPS:]], accuracy)


def summarise(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the ratios of medians and 10th percentiles with intervals, and the raw samples."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "workload": WORKLOAD,
        "steps": [sum(len(pair[kind].step_seconds) for pair in pairs) for kind in (0, 1)],
        "ratio": {
            "medians": _with_interval(pairs, 50),
            "tenth_percentiles": _with_interval(pairs, 10),
        },
        "samples": [
            {"lightning": asdict(lightning), "bare": asdict(bare)} for lightning, bare in pairs
        ],
    }


def _with_interval(pairs: Sequence[Pair], percentile: int) -> dict[str, float]:
    draws = random.Random(0)
    resampled = sorted(_ratio(draws.choices(pairs, k=len(pairs)), percentile) for _ in range(1000))
    return {
        "value": _ratio(pairs, percentile),
        "lower_95": resampled[25],
        "upper_95": resampled[974],
    }


def _ratio(pairs: Sequence[Pair], percentile: int) -> float:
    lightning, bare = (
        quantiles([seconds for pair in pairs for seconds in pair[kind].step_seconds], n=100)[
            percentile - 1
        ]
        for kind in (0, 1)
    )
    return lightning / bare


def describe_machine() -> dict[str, Any]:
    """Return the hardware and the versions on which the numbers were measured."""
    from importlib.metadata import version

    from training.hardware import device_name

    packages = ("torch", "pytorch-lightning", "numpy")
    return {
        "processor": device_name(),
        "cores": os.cpu_count(),
        "threads_used": int(os.environ["OMP_NUM_THREADS"]),
        "load_average_1_minute": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Lightning with a bare PyTorch loop.")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with the digits table (Parquet)"
    )
    parser.add_argument("--repeats", type=int, default=20, help="pairs of runs")
    parser.add_argument(
        "--limit",
        type=float,
        default=1.05,
        help="exit with code 1 at this ratio of the medians or above",
    )
    parser.add_argument("--output", type=Path, help="where to store the result (JSON)")
    return parser.parse_args(argv)


def _arguments(data: Path, folder: Path) -> Any:
    from training.arguments import parse_arguments

    values = {**WORKLOAD, "data": data, "output-data-dir": folder, "model-dir": folder}
    return parse_arguments([f"--{name}={value}" for name, value in values.items()], {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
