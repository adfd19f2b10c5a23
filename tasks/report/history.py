"""Write a finished sweep's history file to the store, and read the files of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.errors import best_effort
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.predictions.checked import check_predictions
from nodesweep.scaling.trend.history import HISTORY_SCHEMA_VERSION, history_frame, write_history


def put_history(store: Store, reports: Sequence[ScalingReport], benchmark: str) -> str:
    """Write or replace the sweep's file, and return its URI.

    A sweep with several arms has one report per arm, and all of them go into one file.
    """
    sweep = reports[0].sweep_id
    key = names.history_key(store.prefix, benchmark, sweep, HISTORY_SCHEMA_VERSION)
    from pandas import concat  # slow to import

    frame = concat([history_frame(report) for report in reports])
    checks = [check for report in reports for check in check_predictions(report)]
    store.put(key, write_history(frame, benchmark, checks))
    return store.uri(key)


def read_history_files(store: Store, benchmark: str) -> dict[str, bytes]:
    """Return the content of each of the benchmark's files by URI, ordered by key.

    A file that can't be read is left out with a warning.
    """
    key = names.history_key(store.prefix, benchmark, "", HISTORY_SCHEMA_VERSION)
    partition, _, ending = key.rpartition("/")
    keys = [key for key in store.keys(f"{partition}/") if key.endswith(ending)]
    bodies: dict[str, bytes] = {}
    for key in keys:
        uri = store.uri(key)
        with best_effort(f"history file left out: {uri} can't be read"):
            if (body := store.get(key)) is not None:
                bodies[uri] = body
    return bodies


def list_benchmarks(store: Store) -> list[str]:
    """Return the names of the benchmarks that have a history, sorted."""
    # …/benchmark=
    table = names.history_key(store.prefix, "", "", HISTORY_SCHEMA_VERSION).rpartition("/")[0]
    return store.folders(table)
