"""How many nodes should a training job run on, what does it cost, why doesn't it scale further?

Imports nothing but os: this is part of every command's start.
"""

import os as _os

_HERE = _os.path.dirname(_os.path.abspath(__file__))
# An installed package has flows/, tasks/, configs/ and infra/ in this folder, a checkout beside it.
# Whoever imports it from a checkout gets them from there, so no process mixes two revisions.
if not _os.path.isdir(_os.path.join(_HERE, "flows")):
    __path__.append(_os.path.dirname(_HERE))

__all__ = ["Plan", "Report", "history", "load_config", "plan", "read_report", "run"]


def __getattr__(name: str) -> object:
    """Import nodesweep.api once somebody asks for what it has."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nodesweep import api

    return getattr(api, name)
