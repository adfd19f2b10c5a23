"""Clocks for steps: the host's, or an accelerator's, which runs asynchronously."""

from __future__ import annotations

import time

import torch


class HostClock:
    """Clock for a CPU, where the host does the work itself."""

    def mark(self) -> float:
        """Return the current time, in seconds."""
        return time.perf_counter()

    def seconds_between(self, start: float, stop: float) -> float:
        """Return the seconds between two marks."""
        return stop - start

    def catch_up(self) -> None:
        """Do nothing: the host has no work outstanding."""


class CudaClock:
    """Clock for a GPU: events in its stream, read after synchronization."""

    def mark(self) -> torch.cuda.Event:
        """Return an event recorded in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return the seconds between two completed events."""
        return start.elapsed_time(stop) / 1000.0

    def catch_up(self) -> None:
        """Wait until the GPU has finished its work."""
        torch.cuda.synchronize()


def clock_for_device() -> HostClock | CudaClock:
    """Return the clock of the device in use."""
    return CudaClock() if torch.cuda.is_available() else HostClock()
