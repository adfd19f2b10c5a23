"""The message that refuses a precision, with a torch that sees no GPU."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from training import cpu_quota
from training.errors import UserError


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module, since torch is not installed where these tests run."""
    without_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", without_gpu)
    file = Path(cpu_quota.__file__).with_name("hardware.py")
    spec = spec_from_file_location("hardware_without_torch", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("model", "named"), [("model name\t: Fast CPU\n", "Fast CPU"), ("", "this processor")]
)
def test_an_unsupported_precision_is_refused_on_an_unnamed_processor_too(
    hardware: ModuleType, monkeypatch: pytest.MonkeyPatch, model: str, named: str
) -> None:
    """On ARM, /proc/cpuinfo has no model name."""
    monkeypatch.setattr(hardware.Path, "read_text", lambda path, encoding: model)
    with pytest.raises(UserError, match=f"by {named}: use one of auto, 32$"):
        hardware.choose_precision("bf16")
