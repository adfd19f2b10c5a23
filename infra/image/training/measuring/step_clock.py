"""The clock that steps are timed by: the host's, or an accelerator's own, which runs behind it."""

from __future__ import annotations

import time

import torch


class HostClock:
    """For a CPU, where the host does the work itself."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds_between(self, start: float, stop: float) -> float:
        return stop - start

    def catch_up(self) -> None:
        """The host has nothing to wait for."""


class CudaClock:
    """For a GPU, which runs behind the host: events in its own stream,
    read once it has come to a stand-still.
    """

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        return start.elapsed_time(stop) / 1000.0

    def catch_up(self) -> None:
        """Wait until the accelerator has done what it was given."""
        torch.cuda.synchronize()


def clock_for_device() -> HostClock | CudaClock:
    """The clock of the accelerator in use."""
    return CudaClock() if torch.cuda.is_available() else HostClock()
