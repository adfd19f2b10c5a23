"""Every loop over other people's objects judges them one by one: a damaged object is reported, and
the loop continues."""

from __future__ import annotations

import io
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nodesweep.aws.platform import aws_client
from nodesweep.cli.commands.history import parse_readable
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.flows.stages import regression
from nodesweep.launch.sagemaker.launcher import SageMakerJobs
from nodesweep.launch.sagemaker.store import BucketStore
from nodesweep.scaling import names
from nodesweep.scaling.trend.history import history_frame, read_history, write_history
from nodesweep.scaling.trend.report_file import parse_report
from nodesweep.tasks.report.history import read_history_files
from nodesweep.tasks.sweeps.claims import claim_job, read_claims
from nodesweep.tasks.sweeps.folder import (
    load_sweep_record,
    save_sweep_record,
    save_sweep_record_if_missing,
)
from nodesweep.tasks.sweeps.ids import claim_sweep_id
from nodesweep.tasks.sweeps.orphans import orphans
from nodesweep.tasks.sweeps.records import Sweeps, unfinished_sweep
from tests.nodesweep.cli.test_main import nodesweep
from tests.tasks.sweeps.test_orphans import GRACE_SECONDS, NOW, FakePlatform, job_of

GOLDEN = Path(__file__).parent / "nodesweep" / "scaling" / "golden" / "reference.json"
SOUND, DAMAGED = "bench-20310501080000-0a1b2c3d", "bench-20310501090000-0a1b2c3d"
RECORD = {"schema_version": 1, "config": {}, "inputs": {}, "provenance": {}}

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "list": lambda body: b"[]",
    "null": lambda body: b"null",
    "wrong types": lambda body: json.dumps(
        dict.fromkeys(("left_running", "run", "config", "inputs", "provenance", "summary"), "no")
        | {"schema_version": 1}
    ).encode(),
    "truncated": lambda body: body[: len(body) // 2],
    "binary": lambda body: b"\x00\xff\xfe\x80" * 99,
    "nested": lambda body: b"[" * 100_000,
    "future version": lambda body: b'{"schema_version": 99, "version": 99, "new": {}}',
}


@dataclass
class World:
    """The places of a test's objects."""

    s3: Any
    config: BenchmarkConfig
    folder: Path
    caplog: pytest.LogCaptureFixture

    @property
    def platform(self) -> PlatformConfig:
        return self.config.platform

    @property
    def store(self) -> BucketStore:
        return BucketStore(self.platform, client=self.s3)

    def put(self, key: str, body: bytes) -> None:
        self.s3.put_object(Bucket=self.platform.bucket, Key=key, Body=body)


@pytest.fixture
def world(
    aws: Callable[[str], Any],
    benchmark_config: BenchmarkConfig,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    aws_client.cache_clear()  # a client made outside the mocked account would not be mocked
    client = aws("s3")
    client.create_bucket(Bucket=benchmark_config.platform.bucket)
    yield World(client, benchmark_config, tmp_path, caplog)
    aws_client.cache_clear()


Damage = Callable[[bytes], bytes]


def reaper(world: World, damage: Damage) -> str:
    """Run the reaper.

    A sweep with an unreadable owner counts as old as its youngest job; the sound sweep's owner has
    just given a sign of life.
    """
    fake, platform = FakePlatform(), world.platform
    for sweep, age in ((DAMAGED, 0.0), (SOUND, 9_000.0)):
        fake.add_sweep(platform, sweep, age)
        fake.add_job(job_of(sweep, 1), sweep, 7_200.0)
    key = names.owner_key(platform.prefix, DAMAGED)
    fake.objects[key] = (damage(fake.objects[key][0]), NOW)
    found = orphans(SageMakerJobs(fake), BucketStore(platform, client=fake), GRACE_SECONDS)
    assert sorted(found) == [job_of(SOUND, 1), job_of(DAMAGED, 1)]
    return key


def history(world: World, damage: Damage) -> str:
    """Run `nodesweep history`, and the alarm on a regression."""
    report = parse_report(GOLDEN.read_bytes(), "golden").model_copy(update={"sweep_id": SOUND})
    body = write_history(history_frame(report), world.config.name)
    for sweep, made in ((SOUND, body), (DAMAGED, damage(body))):
        world.put(names.history_key(world.platform.prefix, world.config.name, sweep, 1), made)
    files = read_history_files(world.store, world.config.name)
    tables = [read_history(parse_readable(files))]
    own = report.model_copy(update={"sweep_id": "bench-20310601090000-0a1b2c3d"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regression, "read_history_of", lambda *_: files)
        tables.append(regression._trends(world.store, world.config.name, own))
    for trends in tables:
        assert SOUND in trends[0].sweeps
    return f"{DAMAGED}.parquet"


def list_of_reports(world: World, damage: Damage) -> str:
    for sweep in (SOUND, DAMAGED):
        (world.folder / sweep).mkdir()
        shutil.copy(GOLDEN, world.folder / sweep / "report.json")
    path = world.folder / DAMAGED / "report.json"
    path.write_bytes(damage(path.read_bytes()))
    return _listed(world)


def list_of_records(world: World, damage: Damage) -> str:
    for sweep in (SOUND, DAMAGED):
        save_sweep_record(world.folder, sweep, RECORD)
    path = world.folder / DAMAGED / "sweep.json"
    path.write_bytes(damage(path.read_bytes()))
    return _listed(world)


def _listed(world: World) -> str:
    result = nodesweep("list", "--output", str(world.folder), "--json")
    assert result.exit_code == 0, result.output
    states = {one["sweep_id"]: one for one in json.loads(result.stdout)}
    assert states[SOUND]["state"] in ("reported", "no report", "finished")
    assert states[DAMAGED]["state"] == "unreadable"
    logging.getLogger("nodesweep.test").warning("%s", states[DAMAGED]["problem"])
    shown = nodesweep("show", DAMAGED, "--output", str(world.folder))
    assert (shown.exit_code, "Traceback" in shown.output) == (1, False)
    return DAMAGED


def resumed_record(world: World, damage: Damage) -> str:
    """Read a resumed sweep's record from the bucket, which a damaged record on this machine does
    not prevent."""
    path = world.folder / DAMAGED / "sweep.json"
    path.parent.mkdir()
    path.write_bytes(damage(json.dumps(RECORD).encode()))
    save_sweep_record_if_missing(world.folder, DAMAGED, RECORD)
    assert load_sweep_record(world.folder, DAMAGED) == RECORD
    return str(path)


LOOPS = (reaper, history, list_of_reports, list_of_records, resumed_record)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_damaged_object_is_named_and_the_rest_goes_on(
    loop: Callable[[World, Damage], str],
    damage: str,
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = loop(world, DAMAGES[damage])
    assert name in world.caplog.text + capsys.readouterr().err


def test_folder_that_may_not_be_entered_costs_its_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sweep in (SOUND, DAMAGED):
        save_sweep_record(world.folder, sweep, RECORD)
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if path.parent.name == DAMAGED:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    assert _listed(world) == DAMAGED


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_counts_by_its_name_alone_may_be_damaged(damage: str, world: World) -> None:
    """These are claims, the run to which an ID was given, and the report of an earlier sweep."""
    body, platform = DAMAGES[damage](b'{"run": "r"}'), world.platform
    job = names.job_name(SOUND, 1, 1, 1, "abcd")
    claim_job(world.store, SOUND, job, "one")
    world.put(names.claim_key(platform.prefix, SOUND, job_of(SOUND, 2), "two"), body)
    assert read_claims(world.store, SOUND) == {job, job_of(SOUND, 2)}

    first = names.sweep_id(world.config, NOW)
    world.put(names.run_claim_key(platform.prefix, first), body)
    mine = claim_sweep_id(Sweeps(world.store, world.config), NOW, "mine")
    assert mine != first

    world.put(names.sweep_config_key(platform.prefix, first), body)
    world.put(names.report_key(platform.prefix, first, names.REPORT_JSON), body)
    assert unfinished_sweep(Sweeps(world.store, world.config), excluding=mine) == first


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("nodes", pa.array(["one"])),
        ("used", pa.array(["yes"])),
        ("sweep_id", pa.array([None], pa.string())),
        ("train_seconds", pa.array([None], pa.float64())),
        ("train_seconds", pa.array([math.nan])),
        ("baseline_nodes", pa.array([None], pa.int32())),
    ],
)
def test_history_file_with_another_column_costs_its_sweep(
    column: str, values: pa.Array, capsys: pytest.CaptureFixture[str]
) -> None:
    report = parse_report(GOLDEN.read_bytes(), "golden")
    table = pq.read_table(io.BytesIO(write_history(history_frame(report), "bench")))
    first = table.filter(table["used"]).slice(0, 1)
    place = first.column_names.index(column)
    damaged = first.set_column(place, column, values)
    # what another program writes: the same values in other widths
    wider = first.set_column(
        first.column_names.index("nodes"), "nodes", first["nodes"].cast(pa.int64())
    )
    files = {"sound": io.BytesIO(), "damaged": io.BytesIO()}
    pq.write_table(wider, files["sound"])
    pq.write_table(damaged, files["damaged"])
    [frame] = parse_readable({name: file.getvalue() for name, file in files.items()})
    assert len(frame) == 1 and read_history([frame])
    assert ": damaged: " in capsys.readouterr().err
