"""The train clock, whose time nodesweep_budget splits into parts."""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from nodesweep_budget import FILE, budget, install
from nodesweep_flops import flops
from torch.optim.optimizer import register_optimizer_step_post_hook

from training.files import write_text_atomically
from training.measuring.step_timer import Stopwatch

RESUMED = "it was interrupted, and only the steps since then were timed"


class SplitStopwatch(Stopwatch):
    """A stopwatch whose time is split while it runs."""

    def __init__(self) -> None:
        super().__init__()
        _install_once()
        budget.reset()
        self._began: float | None = None

    def start(self) -> None:
        """Start, or continue if already running."""
        super().start()
        self._began = time.perf_counter() if self._began is None else self._began
        budget.resume()

    def stop(self) -> None:
        """Pause until the next start."""
        budget.pause()
        super().stop()

    def fetched(self, asked: float) -> None:
        """Record that the loader delivered a batch; `asked` is the time.perf_counter() before."""
        budget.fetched(self, asked)

    def facts(self, world_size: int, rank: int, reason: str | None) -> dict[str, Any]:
        """Return this rank's entries for metrics.json: `flops`, and `budget` or `not_split`.

        Args:
            world_size: Number of ranks.
            rank: Number of this rank.
            reason: Reason why the parts would not sum to the train time; None if they do.
        """
        counted = {"flops": flops.facts()}
        reason = reason or budget.missing(world_size)
        if reason is not None or self._began is None:
            return {"not_split": reason, **counted}
        return {"budget": [budget.facts(self._began, [self], world_size, rank)], **counted}


def write_parts(facts: dict[str, Any], folder: Path) -> None:
    """Write the parts of a rank other than 0, which has no metrics.json."""
    for parts in facts.get("budget", ()):
        path = folder / FILE.format(rank=parts["rank"])
        write_text_atomically(path, json.dumps(parts, allow_nan=False) + "\n")


@cache
def _install_once() -> None:
    """Install this process's permanent hooks once."""
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or bool
    measure = sys.modules.get("nodesweep_measure")
    if measure is not None and measure.watched.torch is not None:
        # This program runs as the user code of a job, which nodesweep_measure watches.
        measure.watched.turn_off("the program measures itself")
    else:
        install(torch, is_compiling)

    def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            budget.end_step(optimizer, time.perf_counter())

    register_optimizer_step_post_hook(after_step)
