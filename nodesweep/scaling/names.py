"""Build sweep ids, job names, S3 keys, names of result files, and the digests in them.

No other module builds them. This module imports nothing heavy, because the shell completion of
sweep ids loads it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
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
PlotKind = Literal["speedup", "efficiency", "cost", "phases", "parts", "types", "frontier"]
_SWEEP_ID = re.compile(
    r"^(?P<name>[a-z0-9](-?[a-z0-9])*)-(?P<started>\d{14})-(?P<digest>[0-9a-f]{8})$"
)


def canonical_digest(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the value's JSON with sorted keys."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def config_digest(config: BenchmarkConfig) -> str:
    """Return the digest of the fields that affect what a sweep measures.

    A sweep can be resumed only with a config that has the same digest. Fields marked NOT_MEASURED,
    such as the budget, are left out. Bucket, region, role and the last component of each local path
    are included.
    """
    from nodesweep.configs.section import NOT_MEASURED, WITH_SECRETS, marked_fields

    asked = config.model_dump(mode="json", context=WITH_SECRETS)
    for name in marked_fields(type(config), NOT_MEASURED):
        _leave_out(asked, name.split("."))
        for variant in asked["sweep"].get("variants", ()):
            _leave_out_of_variant(variant["set"], name)
    config.sweep.rules.identify(asked["sweep"], config)
    if config.dataset is not None and not config.dataset.is_remote:
        asked["dataset"]["source"] = PurePath(config.dataset.source).name
    if not config.runs_unmodified_container:
        asked["image"]["context"] = config.image.build_context.name
    asked["training"]["source_dir"] = (
        config.training.source_dir and PurePath(config.training.source_dir).name
    )
    return canonical_digest(asked)


def _leave_out(asked: dict[str, Any], path: Sequence[str]) -> None:
    """Remove the field at a path, if it exists."""
    *sections, name = path
    for section in sections:
        asked = asked.get(section) or {}
    asked.pop(name, None)


def _leave_out_of_variant(settings: dict[str, Any], name: str) -> None:
    """Remove a field from a variant's settings, whose keys name fields or whole sections."""
    settings.pop(name, None)
    for key, value in settings.items():
        if name.startswith(f"{key}."):
            _leave_out(value, name.removeprefix(f"{key}.").split("."))


def sweep_id(config: BenchmarkConfig, started: datetime) -> str:
    """Return <benchmark>-<UTC yyyymmddhhmmss>-<8 hex of the config digest>, at most 44 characters.

    tasks/sweeps/ids.py picks `started`: the time at which the sweep starts, or the next second that
    no other run has taken.
    """
    return f"{config.name}-{started.astimezone(UTC):%Y%m%d%H%M%S}-{config_digest(config)[:8]}"


def is_sweep_id(text: str) -> bool:
    """Return True if the text has the form of a sweep id."""
    return _SWEEP_ID.fullmatch(text) is not None


def sweep_age_key(sweep: str) -> tuple[str, str]:
    """Return a key that sorts sweep ids by start time, oldest first, after all other strings."""
    match = _SWEEP_ID.fullmatch(sweep)
    return (match["started"] if match else "", sweep)


def sweep_started(sweep: str) -> datetime:
    """Return the UTC time in a sweep id.

    Raises:
        ValueError: The text is not a sweep id or contains no valid time.
    """
    match = _SWEEP_ID.fullmatch(sweep)
    if match is None:
        raise ValueError(f"{sweep!r} is not a sweep id")
    return datetime.strptime(match["started"], "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def sweep_matches(candidate: str, config: BenchmarkConfig) -> bool:
    """Return True if a sweep id belongs to this config (same name, same digest)."""
    match = _SWEEP_ID.fullmatch(candidate)
    return (
        match is not None
        and match["name"] == config.name
        and match["digest"] == config_digest(config)[:8]
    )


def job_prefix(sweep: str) -> str:
    """Return the prefix of the names of all training jobs of a sweep."""
    return f"{sweep}-n"


class JobKey(NamedTuple):
    """A job's place in its sweep, as encoded in its name; `arm` is the arm's code."""

    arm: str
    nodes: int
    repeat: int
    attempt: int

    @property
    def point(self) -> tuple[str, int, int]:
        """(arm, nodes, repeat), which all attempts at a point share."""
        return self[:3]

    @property
    def text(self) -> str:
        """The short name, such as n4-r1-a2, or n4b-r1-a2 on the second arm."""
        return f"n{self.nodes}{self.arm}-r{self.repeat}-a{self.attempt}"


def arm_code(place: int) -> str:
    """Return an arm's code in job names: the letter for its place among the arms, "a" for 0."""
    return chr(ord("a") + place)


def job_name(
    sweep: str, nodes: int, repeat: int, attempt: int, request_digest: str, arm: str = ""
) -> str:
    """Return a training job's name, at most 63 characters as SageMaker requires.

    The longest name consists of a sweep id of 44 characters, "-n512a-r50-a10-" and 4 hex digits of
    the request digest. `arm` is the arm_code() in a sweep of several arms, otherwise "".
    """
    return f"{sweep}-{JobKey(arm, nodes, repeat, attempt).text}-{request_digest[:4]}"


def validation_job_prefix(sweep: str) -> str:
    """Return the prefix of the names of a sweep's Processing jobs."""
    return f"{sweep}-v"


def validation_job_name(sweep: str, attempt: int, request_digest: str) -> str:
    """Return the name of the Processing job that validates a sweep's dataset.

    The longest name consists of a sweep id of 44 characters, "-v10-" and 8 hex digits of the
    request digest. SageMaker allows 63 characters.
    """
    return f"{validation_job_prefix(sweep)}{attempt}-{request_digest[:8]}"


def sweep_of_validation_job(name: str) -> str | None:
    """Return the sweep of one of nodesweep's Processing jobs, or None for any other name."""
    match = _VALIDATION_JOB.match(name)
    return match["sweep"] if match and is_sweep_id(match["sweep"]) else None


def attempt_of_validation_job(name: str) -> int | None:
    """Return the attempt of one of nodesweep's Processing jobs, or None for any other name."""
    match = _VALIDATION_JOB.match(name)
    return int(match["attempt"]) if match else None


def validation_request_key(prefix: str, sweep: str, job: str) -> str:
    """Return the key of a Processing job's only input, the validation request.

    The object is written before the job is submitted, so that stopping a sweep finds every such
    job.
    """
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/request/request.json"


def validation_verdict_key(prefix: str, sweep: str, job: str) -> str:
    """Return the key under which SageMaker stores the findings of a Processing job."""
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/verdict/verdict.json"


def validation_claims_prefix(prefix: str, sweep: str) -> str:
    """Return the prefix of a sweep's Processing job folders, one for each job ever claimed.

    Appending the rest of a folder's name to validation_job_prefix() gives the name of its job.
    """
    return f"{sweep_output_prefix(prefix, sweep)}/{validation_job_prefix(sweep)}"


def dataset_prefix(prefix: str, name: str, content_digest: str) -> str:
    """Return the prefix of a dataset, derived from its content."""
    return f"{prefix}/datasets/{name}/{content_digest[:16]}/"


def dataset_data_prefix(prefix: str, name: str, content_digest: str) -> str:
    """Return the prefix of a dataset's files.

    The manifest is outside it, so that channels contain only data.
    """
    return dataset_prefix(prefix, name, content_digest) + "data/"


def dataset_manifest_key(prefix: str, name: str, content_digest: str) -> str:
    """Return the key of a dataset's manifest."""
    return dataset_prefix(prefix, name, content_digest) + "manifest.json"


def context_key(prefix: str, image_tag: str) -> str:
    """Return the key of an image's zipped build context."""
    return f"{prefix}/contexts/{image_tag}.zip"


def source_key(prefix: str, content_digest: str) -> str:
    """Return the key of the packed training code."""
    return f"{prefix}/code/{content_digest[:16]}/sourcedir.tar.gz"


def proven_code_key(prefix: str, code_digest: str) -> str:
    """Return the key of the object that is written once code with this digest completes a point."""
    return f"{prefix}/code/proven/{code_digest[:32]}.json"


def sweeps_prefix(prefix: str) -> str:
    """Return the prefix of all sweeps."""
    return f"{prefix}/sweeps/"


def sweep_prefix(prefix: str, sweep: str) -> str:
    """Return the prefix of one sweep."""
    return f"{sweeps_prefix(prefix)}{sweep}/"


def sweep_config_key(prefix: str, sweep: str) -> str:
    """Return the key of a sweep's recorded config."""
    return sweep_prefix(prefix, sweep) + "config.json"


def run_claim_key(prefix: str, sweep: str) -> str:
    """Return the key of the object with which a run claims the ID of a new sweep."""
    return sweep_prefix(prefix, sweep) + "run.json"


def stop_marker_key(prefix: str, sweep: str) -> str:
    """Return the key of the object that, while it exists, blocks new jobs of the sweep."""
    return sweep_prefix(prefix, sweep) + "stopped.json"


def owner_key(prefix: str, sweep: str) -> str:
    """Return the key of the heartbeat that a run writes every minute while it drives the sweep."""
    return sweep_prefix(prefix, sweep) + "owner.json"


def claims_prefix(prefix: str, sweep: str, claimant: str | None = None) -> str:
    """Return the prefix of a sweep's job claims, claims/<claimant>/<job>.json.

    Without a `claimant`, return the prefix of all claims.
    """
    return (
        sweep_prefix(prefix, sweep) + "claims/" + (f"{claimant}/" if claimant is not None else "")
    )


def claim_key(prefix: str, sweep: str, job: str, claimant: str) -> str:
    """Return the key of a claimant's claim on a job."""
    return f"{claims_prefix(prefix, sweep, claimant)}{job}.json"


def job_of_claim(key: str) -> str:
    """Return the name of the job from the key of a claim."""
    return key.rsplit("/", 1)[1].removesuffix(".json")


def sweep_output_prefix(prefix: str, sweep: str) -> str:
    """Return the prefix of a sweep's jobs, without a final slash."""
    return sweep_prefix(prefix, sweep) + "jobs"


def job_output_key(prefix: str, sweep: str, job: str) -> str:
    """Return the key of a job's output.tar.gz, which SageMaker puts below the S3OutputPath."""
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/output/output.tar.gz"


def job_checkpoint_prefix(prefix: str, sweep: str, job: str) -> str:
    """Return the prefix of one job's checkpoints, which a restart of the same job restores.

    Other attempts never restore them.
    """
    return f"{sweep_output_prefix(prefix, sweep)}/{job}/checkpoints"


def report_key(prefix: str, sweep: str, file_name: str) -> str:
    """Return the key of a file of a sweep's report."""
    return f"{sweep_prefix(prefix, sweep)}report/{file_name}"


def report_folder_name(stem: str) -> str:
    """Return the folder name for a table's report, from the table's file stem.

    The name contains only [A-Za-z0-9._-], is not hidden, and is neither a sweep id nor `latest`.
    Stems that differ only in other characters share a folder. The prefix `table_` is unambiguous,
    because sweep ids contain no underscore.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    if not safe:
        return "table"
    return f"table_{safe}" if safe.lower() == LATEST or is_sweep_id(safe) else safe


def of_arm(arm_name: str, file_name: str) -> str:
    """Return the path of a file in an arm's report, relative to the sweep's report folder."""
    return f"{arm_name}/{file_name}"


def from_arm(file_name: str) -> str:
    """Return the path of a file in the sweep's report, relative to an arm's report folder."""
    return f"../{file_name}"


def log_link(file_name: str) -> str:
    """Return the path of a log_file(), relative to the sweep's report folder."""
    return f"{LOGS}/{file_name}"


def plot_name(kind: PlotKind, extension: str) -> str:
    """Return a plot's file name such as `speedup.svg`; `extension` has no leading dot."""
    return f"{kind}.{extension}"


def history_prefix(prefix: str) -> str:
    """Return the prefix of all histories."""
    return f"{prefix}/history/"


def history_key(prefix: str, benchmark: str, sweep: str, schema_version: int) -> str:
    """Return the key of a sweep's Parquet file in the history.

    Each benchmark is a Hive partition, and each schema version is a separate table.
    """
    return f"{history_prefix(prefix)}v{schema_version}/benchmark={benchmark}/{sweep}.parquet"


def image_tag(content_digest: str) -> str:
    """Return an image's tag, derived from the content of its build context."""
    return f"ctx-{content_digest[:16]}"


def image_uri(repository_uri: str, digest: str) -> str:
    """Return an image URI pinned by digest, so that a moved tag cannot change a running sweep."""
    return f"{repository_uri}@{digest}"


_KEY = r"n(?P<nodes>\d+)(?P<arm>[a-z]?)-r(?P<repeat>\d+)-a(?P<attempt>\d+)-[0-9a-f]{4}"
_LOG_FILE = re.compile(rf"{_KEY}_(?P<host>[\w-]+)\.log")
_VALIDATION_LOG_FILE = re.compile(r"v(?P<attempt>\d+)-[0-9a-f]{8}_(?P<host>[\w-]+)\.log")
_JOB_NAME = re.compile(rf"^(?P<sweep>.+)-{_KEY}$")
_VALIDATION_JOB = re.compile(r"^(?P<sweep>.+)-v(?P<attempt>\d+)-[0-9a-f]{8}$")


def parse_job_name(name: str) -> JobKey | None:
    """Return the key of a nodesweep training job, or None for any other name."""
    match = _JOB_NAME.match(name)
    return _key(match) if match else None


def _key(match: re.Match[str]) -> JobKey:
    return JobKey(match["arm"], int(match["nodes"]), int(match["repeat"]), int(match["attempt"]))


def log_file(job: str, host: str) -> str:
    """Return the name of the file in LOGS that contains one node's log of a job.

    Examples are n4-r1-a2-ab12_algo-3.log for a training job and v1-0123abcd_algo-1.log for a
    Processing job.
    """
    sweep = sweep_of_job(job) or sweep_of_validation_job(job)
    return f"{job.removeprefix(f'{sweep}-')}_{host}.log"


def parse_log_file(name: str) -> tuple[JobKey, str] | None:
    """Return (key of the job, host) from a log_file() name, or None for any other."""
    match = _LOG_FILE.fullmatch(name)
    return (_key(match), match["host"]) if match else None


def parse_validation_log_file(name: str) -> tuple[int, str] | None:
    """Return (attempt, host) from a Processing job's log_file() name, or None for any other."""
    match = _VALIDATION_LOG_FILE.fullmatch(name)
    return (int(match["attempt"]), match["host"]) if match else None


def sweep_of_job(name: str) -> str | None:
    """Return the sweep of one of nodesweep's training jobs, or None for any other name."""
    match = _JOB_NAME.match(name)
    return match["sweep"] if match and is_sweep_id(match["sweep"]) else None


def console_url(bucket: str, key: str, region: str) -> str:
    """Return the URL of an object in the AWS console."""
    return f"https://{region}.console.aws.amazon.com/s3/object/{bucket}?region={region}&prefix={quote(key)}"


def pretty_json(value: Any) -> bytes:
    """Return a value as indented JSON with sorted keys and a final newline."""
    return (
        json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False).encode()
        + b"\n"
    )
