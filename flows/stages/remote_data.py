"""Detect changes to a dataset that is used in place in S3 since it was validated.

Jobs read its prefix as it is when they start, and earlier contents cannot be restored, so it is
listed again before the first job, before a sweep is resumed, and after the last job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nodesweep.configs.dataset import DatasetConfig
from nodesweep.errors import DatasetMissing, DatasetRefused, PreflightRefused, best_effort
from nodesweep.events import event_extra
from nodesweep.launch.registry import Backend
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.calls import describe_remote_dataset
from nodesweep.tasks.dataset.remote.objects import (
    RemoteDataset,
    RemoteSource,
    find_changes,
    format_changes,
    modified_since,
)
from nodesweep.tasks.sweeps.records import add_to_provenance

logger = logging.getLogger("nodesweep.dataset")
_OF_DATASET = event_extra("message", stage="dataset")
_CHANGE = "dataset_change"
"""Key in a sweep's provenance for the change to its dataset, as text; absent if unchanged."""


def remote_source(backend: Backend, section: DatasetConfig | None) -> RemoteSource | None:
    """Return the config's dataset in S3, or None if it is elsewhere or there is none."""
    return RemoteSource(backend, section) if section is not None and section.is_remote else None


def check_unchanged(source: RemoteSource, validated: RemoteDataset) -> None:
    """Check the dataset before the first job.

    Raises:
        DatasetRefused: Objects have changed; the message names them.
    """
    now = describe_remote_dataset(source)
    if changes := find_changes(validated, now):
        raise DatasetRefused(
            f"dataset.source: objects under {validated.uri} changed after they were validated, so"
            f" no job was started; run again to validate the new version:{format_changes(changes)}"
        )


def check_same_objects(source: RemoteSource, sweep: str, recorded_digest: str | None) -> None:
    """Check the dataset before a sweep is resumed.

    Raises:
        PreflightRefused: Its objects have changed.
    """
    now = describe_remote_dataset(source)
    if not now.is_named(recorded_digest):
        raise PreflightRefused(
            f"dataset.source: the objects under {source.section.source} are no longer those the"
            f" sweep began with (digest {now.digest}, recorded {recorded_digest});"
            f" restore them, or start a new sweep{format_changes(_changes(now, sweep))}"
        )


def with_changes(
    source: RemoteSource | None, store: Store, sweep: str, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the provenance with any changes to a dataset in S3 during the sweep.

    Changes are recorded with the sweep for later reports. If they cannot be determined, a warning
    is logged.
    """
    if source is None or _CHANGE in provenance:
        return dict(provenance)
    changes: list[str] = []
    with best_effort("could not check whether the dataset changed while the sweep ran"):
        try:
            now = describe_remote_dataset(source)
        except DatasetMissing as error:
            changes = [str(error)]
        except DatasetRefused as error:
            logger.warning("could not check whether the dataset changed: %s", error)
        else:
            if not now.is_named(provenance["dataset_digest"]):
                changes = _changes(now, sweep)
    if not changes:
        return dict(provenance)
    logger.warning(
        "the dataset changed while the sweep ran:%s", format_changes(changes), extra=_OF_DATASET
    )
    found = {_CHANGE: changes[0]}
    with best_effort(f"later reports of {sweep} won't say that the dataset changed"):
        add_to_provenance(store, sweep, found)
    return {**provenance, **found}


def _changes(now: RemoteDataset, sweep: str) -> list[str]:
    """Return the changes as text; deleted objects cannot be named."""
    try:
        written = modified_since(now, names.sweep_started(sweep))
    except ValueError:  # a user-chosen id
        written = []
    return written or [f"objects under {now.uri} were deleted or replaced"]
