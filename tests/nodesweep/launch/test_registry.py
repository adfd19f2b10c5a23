"""The backend of a platform."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from nodesweep.configs.models import PlatformConfig
from nodesweep.launch import registry
from nodesweep.launch.registry import Backend, backend_of
from nodesweep.launch.sagemaker.backend import bind


def test_runs_that_start_together_share_one_backend(
    platform: PlatformConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would call the platform as often as calls_per_second allows all of them."""
    both = threading.Barrier(2)

    def slow(bound: PlatformConfig) -> Backend:
        both.wait(timeout=300)
        return bind(bound)

    def module(name: str) -> Any:
        return SimpleNamespace(bind=slow)

    monkeypatch.setattr(registry, "importlib", SimpleNamespace(import_module=module))
    monkeypatch.setattr(registry, "_BACKENDS", {})
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(backend_of, platform) for _ in "12"]
        both.wait(timeout=300)
        first, second = (each.result(timeout=300) for each in found)
    assert first is second
