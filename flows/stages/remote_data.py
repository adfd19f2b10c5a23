"""Whether a dataset that is used where it lies in S3 still is what was validated.

Jobs read its prefix as it is when they start, and nothing brings back what it was. So it is listed
again before the first job, before a sweep goes on, and when the last job has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from nodesweep.configs.models import BenchmarkConfig
from nodesweep.scaling import names
from nodesweep.tasks.dataset.remote.objects import (
    RemoteDataset,
    describe_remote_dataset,
    find_changes,
    modified_since,
    shown,
)
from nodesweep.tasks.errors import DatasetMissing, DatasetRefused, PreflightRefused, best_effort
from nodesweep.tasks.events import about
from nodesweep.tasks.sweeps.records import add_to_provenance

logger = logging.getLogger("nodesweep.dataset")
_OF_DATASET = about("message", stage="dataset")
_CHANGE = "dataset_change"
"""In a sweep's provenance what has become of its dataset, in words; absent where nothing has."""


def check_unchanged(config: BenchmarkConfig, validated: RemoteDataset) -> None:
    """Before the first job: raises DatasetRefused, which names each object that is another now."""
    assert config.dataset is not None
    now = describe_remote_dataset(config.platform, config.dataset)
    if changes := find_changes(validated, now):
        raise DatasetRefused(
            f"dataset.source: objects under {validated.uri} changed after they were validated, so"
            f" no job was started; run again to validate what is there now:{shown(changes)}"
        )


def check_same_objects(config: BenchmarkConfig, sweep: str, recorded_digest: str | None) -> None:
    """Before a sweep goes on: raises PreflightRefused where its objects have changed."""
    section = config.dataset
    if section is None or not section.is_remote:
        return
    now = describe_remote_dataset(config.platform, section)
    if not now.is_named(recorded_digest):
        raise PreflightRefused(
            f"dataset.source: the objects under {section.source} are no longer those the sweep"
            f" began with (digest {now.digest}, recorded {recorded_digest});"
            f" restore them, or start a new sweep{shown(_changes(now, sweep))}"
        )


def with_changes(
    config: BenchmarkConfig, sweep: str, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """After the last job: the provenance, with what has changed while the sweep ran, if anything;
    that is recorded with the sweep, for its later reports. That it can't be told is a warning.
    """
    section = config.dataset
    if section is None or not section.is_remote or _CHANGE in provenance:
        return dict(provenance)
    changes: list[str] = []
    with best_effort("whether the dataset changed while the sweep ran is not known"):
        try:
            now = describe_remote_dataset(config.platform, section)
        except DatasetMissing as error:
            changes = [str(error)]
        except DatasetRefused as error:
            logger.warning("whether the dataset changed is not known: %s", error)
        else:
            if not now.is_named(provenance["dataset_digest"]):
                changes = _changes(now, sweep)
    if not changes:
        return dict(provenance)
    logger.warning("the dataset changed while the sweep ran:%s", shown(changes), extra=_OF_DATASET)
    found = {_CHANGE: changes[0]}
    with best_effort(f"later reports of {sweep} won't say that the dataset changed"):
        add_to_provenance(config.platform, sweep, found)
    return {**provenance, **found}


def _changes(now: RemoteDataset, sweep: str) -> list[str]:
    """In words. Of what was deleted only that something was is known."""
    try:
        written = modified_since(now, names.sweep_started(sweep))
    except ValueError:  # an id that somebody chose
        written = []
    return written or [f"objects under {now.uri} were deleted or replaced"]
