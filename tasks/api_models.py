"""One loader of botocore's API models for all clients of a process.

A loader per session, botocore's default, costs the dozen clients of a run 90 MB and 1.5 s.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import botocore.session


@lru_cache(maxsize=1)
def _reader() -> Any:
    # From a session, so that AWS_DATA_PATH is honored.
    return botocore.session.Session().get_component("data_loader")


def with_shared_models(session: botocore.session.Session) -> botocore.session.Session:
    """Return the session, with the process's one model loader."""
    session.register_component("data_loader", _reader())
    return session
