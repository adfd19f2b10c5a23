"""The only place that spells a sweep id, a job name, an S3 key or a result file's name,
and the digests in them. Imports nothing heavy, for the completion of sweep ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

if TYPE_CHECKING:
    from nodesweep.configs.models import BenchmarkConfig

METRICS_FILE = "metrics.json"
REPORT_JSON = "report.json"
TREND_JSON = "trend.json"
REPORT_MARKDOWN = "report.md"
REPORT_HTML = "report.html"
SHARE_HTML = "share.html"
POINTS_CSV = "points.csv"
DATA_DOCS = "data-docs.html"
LATEST = "latest"
SWEEP_RECORD = "sweep.json"
LOGS = "logs"
RUN_LOG = "run.log"
TAG_SWEEP_ID = "nodesweep:sweep-id"
TAG_REQUEST_DIGEST = "nodesweep:request-digest"
PlotKind = Literal["speedup", "efficiency", "cost", "phases", "types", "frontier"]
_SWEEP_ID = re.compile(
    r"^(?P<name>[a-z0-9](-?[a-z0-9])*)-(?P<started>\d{14})-(?P<digest>[0-9a-f]{8})$"
)


def canonical_digest(value: Any) -> str:
    """SHA-256 (64 hex) of the value's JSON with sorted keys: equal values, equal digests."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def config_digest(config: BenchmarkConfig) -> str:
    """Digest of what is measured; a sweep is resumed by a config of the same digest,
    whatever else was changed.

    Left out is what is marked NOT_MEASURED: with more budget or patience, say, the same points are
    measured. Bucket, region and role count. Local paths count by their last part.
    """
    from nodesweep.configs.section import NOT_MEASURED, WITH_SECRETS, marked_fields

    asked = config.model_dump(mode="json", context=WITH_SECRETS)
    for name in marked_fields(type(config), NOT_MEASURED):
        _leave_out(asked, name.split("."))
    if config.sweep.design == "full":  # ids of sweeps from before there was another design
        del asked["sweep"]["design"]
    if config.sweep.design == "probe":
        asked["sweep"]["probe"] = config.sweep.probe_ends.model_dump(mode="json")
    if config.dataset is not None and not config.dataset.is_remote:
        asked["dataset"]["source"] = PurePath(config.dataset.source).name
    if not config.runs_container_as_it_is:
        asked["image"]["context"] = config.image.build_context.name
    asked["training"]["source_dir"] = (
        config.training.source_dir and PurePath(config.training.source_dir).name
    )
    return canonical_digest(asked)


def _leave_out(asked: dict[str, Any], path: Sequence[str]) -> None:
    """What is not there, as a dataset's fields where there is no dataset, is left out already."""
    *sections, name = path
    for section in sections:
        asked = asked[section] or {}
    asked.pop(name, None)


def sweep_id(config: BenchmarkConfig, started: datetime) -> str:
    """<benchmark>-<UTC yyyymmddhhmmss>-<8 hex of the config digest>, at most 44 characters.

    Which second a sweep has is settled by tasks/sweeps/ids.py: its own start, or the next that no
    other run has taken.
    """
    return f"{config.name}-{started.astimezone(UTC):%Y%m%d%H%M%S}-{config_digest(config)[:8]}"


def is_sweep_id(text: str) -> bool:
    return _SWEEP_ID.fullmatch(text) is not None


def sweep_age_key(sweep: str) -> tuple[str, str]:
    """What sorts sweep ids by the start in them, oldest first; ids of one second by their text.
    Of text that is no sweep id, before all of them.
    """
    match = _SWEEP_ID.fullmatch(sweep)
    return (match["started"] if match else "", sweep)


def sweep_started(sweep: str) -> datetime:
    """The UTC time in a sweep id. Raises ValueError for text that is none, or holds no time."""
    match = _SWEEP_ID.fullmatch(sweep)
    if match is None:
        raise ValueError(f"{sweep!r} is not a sweep id")
    return datetime.strptime(match["started"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def sweep_matches(candidate: str, config: BenchmarkConfig) -> bool:
    """Whether a sweep id belongs to this config (same name, same digest)."""
    match = _SWEEP_ID.fullmatch(candidate)
    return (
        match is not None
        and match["name"] == config.name
        and match["digest"] == config_digest(config)[:8]
    )


def job_prefix(sweep: str) -> str:
    """What the names of all jobs of a sweep begin with."""
    return f"{sweep}-n"


def type_letter(index: int) -> str:
    """How job names call an instance type, by its place in sweep.instance_types: a, b, c."""
    return chr(ord("a") + index)


def job_name(
    sweep: str, nodes: int, repeat: int, attempt: int, request_digest: str, letter: str = ""
) -> str:
    """At most 63 characters, SageMaker's limit:
    44 + "-n512a-r50-a10-" + 4 hex of the request digest.

    `letter` is the type_letter() in a sweep of several instance types, else "".
    """
    return f"{job_prefix(sweep)}{nodes}{letter}-r{repeat}-a{attempt}-{request_digest[:4]}"


def validation_job_prefix(sweep: str) -> str:
    """What the names of a sweep's Processing jobs begin with."""
    return f"{sweep}-v"


def validation_job_name(sweep: str, attempt: int, request_digest: str) -> str:
    """The Processing job that validates the sweep's dataset. At most 63 characters, SageMaker's
    limit: 44 + "-v10-" + 8 hex of what is asked.
    """
    return f"{validation_job_prefix(sweep)}{attempt}-{request_digest[:8]}"


def sweep_of_validation_job(name: str) -> str | None:
    """The sweep of a Processing job of ours, None for any other name."""
    match = _VALIDATION_JOB.match(name)
    return match["sweep"] if match and is_sweep_id(match["sweep"]) else None


def attempt_of_validation_job(name: str) -> int | None:
    """The number of a Processing job of ours, None for any other name."""
    match = _VALIDATION_JOB.match(name)
    return int(match["attempt"]) if match else None


def validation_request_key(prefix: str, sweep: str, job: str) -> str:
    """What the Processing job is asked: its one input. It is written before the job is sent, so
    that whoever stops the sweep knows every such job there may be.
    """
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/request/request.json"


def validation_verdict_key(prefix: str, sweep: str, job: str) -> str:
    """Where SageMaker puts what the Processing job found."""
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/verdict/verdict.json"


def validation_claims_prefix(prefix: str, sweep: str) -> str:
    """Below it a folder for each Processing job that was ever asked for, named by the rest of the
    job's name.
    """
    return f"{sweep_output_prefix(prefix, sweep)}/{validation_job_prefix(sweep)}"


def request_digest(request: Mapping[str, Any]) -> str:
    """Digest of a CreateTrainingJob request without what only names it
    (job name, tags, the job's own folder).
    """
    described = {
        key: value for key, value in request.items() if key not in ("TrainingJobName", "Tags")
    }
    if "CheckpointConfig" in described:
        described["CheckpointConfig"] = {
            k: v for k, v in described["CheckpointConfig"].items() if k != "S3Uri"
        }
    hyperparameters = dict(described.get("HyperParameters", {}))
    hyperparameters.pop("sagemaker_job_name", None)
    return canonical_digest({**described, "HyperParameters": hyperparameters})


def dataset_prefix(prefix: str, name: str, content_digest: str) -> str:
    return f"{prefix}/datasets/{name}/{content_digest[:16]}/"


def dataset_data_prefix(prefix: str, name: str, content_digest: str) -> str:
    """The files themselves, apart from the manifest, so that a channel holds nothing but data."""
    return dataset_prefix(prefix, name, content_digest) + "data/"


def dataset_manifest_key(prefix: str, name: str, content_digest: str) -> str:
    return dataset_prefix(prefix, name, content_digest) + "manifest.json"


def context_key(prefix: str, image_tag: str) -> str:
    return f"{prefix}/contexts/{image_tag}.zip"


def source_key(prefix: str, content_digest: str) -> str:
    return f"{prefix}/code/{content_digest[:16]}/sourcedir.tar.gz"


def proven_code_key(prefix: str, code_digest: str) -> str:
    """An object that is there once code of that digest has completed a point."""
    return f"{prefix}/code/proven/{code_digest[:32]}.json"


def sweeps_prefix(prefix: str) -> str:
    return f"{prefix}/sweeps/"


def sweep_prefix(prefix: str, sweep: str) -> str:
    return f"{sweeps_prefix(prefix)}{sweep}/"


def sweep_config_key(prefix: str, sweep: str) -> str:
    return sweep_prefix(prefix, sweep) + "config.json"


def run_claim_key(prefix: str, sweep: str) -> str:
    """An object that says which run the sweep id was given to; it is the first one of a sweep."""
    return sweep_prefix(prefix, sweep) + "run.json"


def stop_marker_key(prefix: str, sweep: str) -> str:
    """An object that is there while no further job of the sweep may start."""
    return sweep_prefix(prefix, sweep) + "stopped.json"


def owner_key(prefix: str, sweep: str) -> str:
    """An object that is written anew every minute while somebody runs the sweep."""
    return sweep_prefix(prefix, sweep) + "owner.json"


def claims_prefix(prefix: str, sweep: str, claimant: str | None = None) -> str:
    """Below it an object for each job that somebody, or this claimant, sends:
    claims/<who>/<job>.json.
    """
    return (
        sweep_prefix(prefix, sweep) + "claims/" + (f"{claimant}/" if claimant is not None else "")
    )


def claim_key(prefix: str, sweep: str, job: str, claimant: str) -> str:
    return f"{claims_prefix(prefix, sweep, claimant)}{job}.json"


def job_of_claim(key: str) -> str:
    """The job that a claim's key names."""
    return key.rsplit("/", 1)[1].removesuffix(".json")


def sweep_output_prefix(prefix: str, sweep: str) -> str:
    return sweep_prefix(prefix, sweep) + "jobs"


def job_output_key(prefix: str, sweep: str, job: str) -> str:
    """Where SageMaker puts a job's output.tar.gz under the sweep's S3OutputPath."""
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/output/output.tar.gz"


def job_checkpoint_prefix(prefix: str, sweep: str, job: str) -> str:
    """One per job: restored when that job starts again, and never to another attempt."""
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/checkpoints"


def report_key(prefix: str, sweep: str, file_name: str) -> str:
    return f"{sweep_prefix(prefix, sweep)}report/{file_name}"


def report_folder_name(stem: str) -> str:
    """Folder of a table's report, from the table's file stem: [A-Za-z0-9._-], not hidden, no sweep
    id, not `latest`.

    Stems that differ in other characters alone share a folder. No sweep id holds an underscore.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    if not safe:
        return "table"
    return f"table_{safe}" if safe.lower() == LATEST or is_sweep_id(safe) else safe


def of_type(instance_type: str, file_name: str) -> str:
    """Where a file of one instance type's own report lies within the sweep's."""
    return f"{instance_type}/{file_name}"


def from_type(file_name: str) -> str:
    """Where one instance type's own report finds a file of the sweep's."""
    return f"../{file_name}"


def log_link(file_name: str) -> str:
    """Where a sweep's report finds a file that log_file() names."""
    return f"{LOGS}/{file_name}"


def plot_name(kind: PlotKind, extension: str) -> str:
    """`speedup.svg`; the extension comes without its dot."""
    return f"{kind}.{extension}"


def history_prefix(prefix: str) -> str:
    return f"{prefix}/history/"


def history_key(prefix: str, benchmark: str, sweep: str, schema_version: int) -> str:
    """One Parquet file per sweep, in a Hive partition per benchmark; every schema version is a
    table of its own.
    """
    return f"{history_prefix(prefix)}v{schema_version}/benchmark={benchmark}/{sweep}.parquet"


def image_tag(content_digest: str) -> str:
    return f"ctx-{content_digest[:16]}"


def image_uri(repository_uri: str, digest: str) -> str:
    """Pinned by digest, so that a moved tag can't change a sweep half-way."""
    return f"{repository_uri}@{digest}"


_LOG_FILE = re.compile(
    r"n(?P<nodes>\d+)(?P<letter>[a-z]?)-r(?P<repeat>\d+)-a(?P<attempt>\d+)-[0-9a-f]{4}"
    r"_(?P<host>[\w-]+)\.log"
)
_VALIDATION_LOG_FILE = re.compile(r"v(?P<attempt>\d+)-[0-9a-f]{8}_(?P<host>[\w-]+)\.log")
_JOB_NAME = re.compile(
    r"^(?P<sweep>.+)-n(?P<nodes>\d+)(?P<letter>[a-z]?)"
    r"-r(?P<repeat>\d+)-a(?P<attempt>\d+)-[0-9a-f]{4}$"
)


_VALIDATION_JOB = re.compile(r"^(?P<sweep>.+)-v(?P<attempt>\d+)-[0-9a-f]{8}$")


def parse_job_name(name: str) -> tuple[int, int, int] | None:
    """(nodes, repeat, attempt) of a job of ours, None for any other name."""
    match = _JOB_NAME.match(name)
    return (int(match["nodes"]), int(match["repeat"]), int(match["attempt"])) if match else None


def short_job_name(name: str) -> str | None:
    """n4-r1-a2 of a job of ours, n4b-r1-a2 of one on the second of several instance types; None for
    any other name.
    """
    match = _JOB_NAME.match(name)
    if match is None:
        return None
    return f"n{match['nodes']}{match['letter']}-r{match['repeat']}-a{match['attempt']}"


def letter_of_log_file(name: str) -> str:
    """The type_letter() in the name of a file that log_file() names; "" in any other."""
    match = _LOG_FILE.fullmatch(name)
    return match["letter"] if match else ""


def letter_of_job(name: str) -> str:
    """The type_letter() in a job's name; "" in a sweep of one instance type."""
    match = _JOB_NAME.match(name)
    return match["letter"] if match else ""


def log_file(job: str, host: str) -> str:
    """The file in LOGS that keeps the log of one node of a job of ours:
    n4-r1-a2-ab12_algo-3.log, of a Processing job v1-0123abcd_algo-1.log.
    """
    sweep = sweep_of_job(job) or sweep_of_validation_job(job)
    return f"{job.removeprefix(f'{sweep}-')}_{host}.log"


def parse_log_file(name: str) -> tuple[tuple[int, int, int], str] | None:
    """((nodes, repeat, attempt), host) of a file that log_file() names, None for any other."""
    match = _LOG_FILE.fullmatch(name)
    if match is None:
        return None
    return (int(match["nodes"]), int(match["repeat"]), int(match["attempt"])), match["host"]


def parse_validation_log_file(name: str) -> tuple[int, str] | None:
    """(attempt, host) of a file that log_file() names for a Processing job, None for any other."""
    match = _VALIDATION_LOG_FILE.fullmatch(name)
    return (int(match["attempt"]), match["host"]) if match else None


def sweep_of_job(name: str) -> str | None:
    """The sweep of a job of ours, None for any other name."""
    match = _JOB_NAME.match(name)
    return match["sweep"] if match and is_sweep_id(match["sweep"]) else None


def console_url(bucket: str, key: str, region: str) -> str:
    """The object in AWS's console, where a browser shows it to who may read it."""
    return f"https://{region}.console.aws.amazon.com/s3/object/{bucket}?region={region}&prefix={quote(key)}"


def pretty_json(value: Any) -> bytes:
    """The bytes every JSON file of ours is written with: sorted keys, indented, a final newline."""
    return (
        json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False).encode()
        + b"\n"
    )
