"""Find how many nodes a training job should run on, what it costs and why it stops scaling.

Imports only os, because every command imports this module at startup.
"""

import os as _os

_HERE = _os.path.dirname(_os.path.abspath(__file__))
# In an installed package, flows/, tasks/, configs/ and infra/ are in this folder; in a checkout,
# they are next to it. Taking them from the same checkout keeps a process from mixing revisions.
if not _os.path.isdir(_os.path.join(_HERE, "flows")):
    __path__.append(_os.path.dirname(_HERE))

__all__ = ["Plan", "Report", "history", "load_config", "plan", "read_report", "run"]


def __getattr__(name: str) -> object:
    """Import nodesweep.api on first access to one of its names."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nodesweep import api

    return getattr(api, name)
