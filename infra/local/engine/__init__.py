"""The process engine (a node is a process tree) and its image store; imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.local.engine.process.engine import ProcessEngine
    from infra.local.engine.process.image_store import ProcessImageStore

__all__ = ["ProcessEngine", "ProcessImageStore"]


def __getattr__(name: str) -> Any:
    if name == "ProcessEngine":
        from infra.local.engine.process.engine import ProcessEngine

        return ProcessEngine
    if name == "ProcessImageStore":
        from infra.local.engine.process.image_store import ProcessImageStore

        return ProcessImageStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
