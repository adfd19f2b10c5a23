"""Find sweeps in the store, and read and write their records and reports."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodesweep.aws.platform import patient, persistent
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.errors import RecordDamaged, SweepNotFound, SweepNotNamed
from nodesweep.launch.store import Store
from nodesweep.scaling import names
from nodesweep.tasks.sweeps.claims import read_stop_mark, read_validation_claims
from nodesweep.tasks.sweeps.folder import parse_record

logger = logging.getLogger("nodesweep.sweep")


@dataclass(frozen=True)
class Sweeps:
    """The sweeps of one config in a store."""

    store: Store
    config: BenchmarkConfig

    def quick(self) -> Sweeps:
        """Return the same sweeps in a store whose calls time out after seconds; see Store."""
        return replace(self, store=self.store.quick())

    def names(self) -> list[str]:
        """Return every sweep of exactly this config, oldest first."""
        found = self.store.folders(names.sweeps_prefix(self.store.prefix))
        return sorted(filter(self.include, found))

    def include(self, sweep: str) -> bool:
        """Return True if a sweep with this ID would be a sweep of exactly this config."""
        return names.sweep_matches(sweep, self.config)

    def is_done(self, sweep: str) -> bool:
        """Return True if the sweep's report has a completed run of every point of its design.

        False if there is no readable report.
        """
        key = names.report_key(self.store.prefix, sweep, names.REPORT_JSON)
        # slow to import, and rarely needed
        from nodesweep.scaling.design.progress import is_complete
        from nodesweep.scaling.trend.report_file import ReportUnreadable, parse_report

        try:
            report = self.store.get(key)
            return report is not None and is_complete(
                self.config, parse_report(report, names.REPORT_JSON)
            )
        except ReportUnreadable:
            return False


def latest_sweep(sweeps: Sweeps) -> str:
    """Return the latest sweep of exactly this config, which --resume without an ID continues.

    Raises:
        SweepNotFound: the config has no sweep.
        SweepNotNamed: the latest sweep is finished or was never recorded, so the user may mean a
            different one.
    """
    store, mine = sweeps.store, sweeps.names()
    if not mine:
        raise SweepNotFound(
            f"no sweep of this config under {store.uri(names.sweeps_prefix(store.prefix))};"
            " run it without --resume, or give a sweep ID"
        )
    latest = mine[-1]
    if not _has_begun(store, latest):
        earlier = next((sweep for sweep in reversed(mine[:-1]) if has_record(store, sweep)), None)
        raise SweepNotNamed(
            f"--resume: the latest run of this config, {latest}, ended before its"
            " sweep was recorded (or is still preparing it) and has no job to resume. Start a new"
            " sweep without --resume"
            + (f", or resume an earlier one: --resume {earlier}" if earlier else "")
        )
    if sweeps.is_done(latest):
        raise SweepNotNamed(
            f"--resume: the latest sweep of this config, {latest}, is finished: all its points have"
            " a completed run. A run that ended before its sweep began left nothing to resume:"
            f" start a new sweep without --resume, or give the ID: --resume {latest}"
        )
    return latest


def unfinished_sweep(sweeps: Sweeps, excluding: str) -> str | None:
    """Return the latest sweep of exactly this config if --resume could continue it.

    The sweep `excluding` is ignored.
    """
    latest = next((one for one in reversed(sweeps.names()) if one != excluding), None)
    if latest is None or not _has_begun(sweeps.store, latest):
        return None
    return None if sweeps.is_done(latest) else latest


def _has_begun(store: Store, sweep: str) -> bool:
    return has_record(store, sweep) or is_being_validated(store, sweep)


def has_record(store: Store, sweep: str) -> bool:
    """Return True if the sweep has a record, which means that it has begun."""
    return store.get(names.sweep_config_key(store.prefix, sweep)) is not None


def is_being_validated(store: Store, sweep: str) -> bool:
    """Return True if the sweep has a validation job and no stop mark.

    A run that resumes the sweep adopts this job.
    """
    return bool(read_validation_claims(store, sweep)) and read_stop_mark(store, sweep) is None


@patient
def begins_with_validation(store: Store, sweep: str) -> bool:
    """Return True if the sweep is in, or was interrupted during, the validation of its dataset."""
    return not has_record(store, sweep) and is_being_validated(store, sweep)


@patient
def find_latest_sweep(sweeps: Sweeps) -> str:
    """Return the sweep that --resume without an ID continues; see latest_sweep() for errors."""
    return latest_sweep(sweeps)


@patient
def sweep_exists(store: Store, sweep: str) -> bool:
    """Return True if the sweep has begun."""
    return has_record(store, sweep)


def prepare_store(store: Store) -> None:
    """Verify that the store can be used, or create it if it is missing."""
    store.prepare()


def read_sweep_record(store: Store, sweep: str) -> dict[str, Any]:
    """Read a sweep's record (config, image, dataset).

    Raises:
        SweepNotFound: there is no record.
        RecordDamaged: the record is unreadable.
    """
    key = names.sweep_config_key(store.prefix, sweep)
    body = store.get(key)
    if body is None:
        raise SweepNotFound(
            f"no sweep {sweep}: {store.uri(key)} does not exist. Is the ID correct,"
            " and does it belong to this platform (--config)? A sweep whose bucket or record was"
            f" deleted can't be resumed: `nodesweep stop {sweep}` stops running jobs, `nodesweep"
            f" logs {sweep}` prints their logs, `nodesweep run CONFIG` starts a new sweep"
        )
    return parse_record(body, store.uri(key))


@patient
def write_sweep_record(store: Store, sweep: str, record: Mapping[str, Any]) -> None:
    """Write the sweep's record, which marks the sweep as begun."""
    store.put(names.sweep_config_key(store.prefix, sweep), names.pretty_json(record))


def add_to_provenance(store: Store, sweep: str, found: Mapping[str, str]) -> None:
    """Add findings to the sweep's record, so that later reports include them.

    A missing or damaged record only causes a warning.
    """
    try:
        record = persistent(read_sweep_record)(store, sweep)
    except (RecordDamaged, SweepNotFound) as error:
        logger.warning(
            "can't record a change of the dataset (%s): %s", ", ".join(found.values()), error
        )
        return
    record = {**record, "provenance": record["provenance"] | found}
    write_sweep_record(store, sweep, record)


def read_report_file(store: Store, sweep: str, file_name: str) -> bytes | None:
    """Read a file of the sweep's report."""
    return store.get(names.report_key(store.prefix, sweep, file_name))


def put_objects(store: Store, objects: Mapping[str, bytes]) -> None:
    """Write small objects to the store, by key."""
    for key, body in objects.items():
        store.put(key, body)
