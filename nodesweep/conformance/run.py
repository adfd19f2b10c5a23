"""Compute the bill of the chosen checks, and run them; the result file allows a run to resume.

The file is written after every check. Account numbers are removed, so it can be committed.
"""

from __future__ import annotations

import json
import platform as machine
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from nodesweep.configs.atomic import SHARED, write_atomic
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.conformance.check import Check, Contradicted, NoEvidence, NotYet, Paid, Status, Unmet
from nodesweep.conformance.claims import sentences_of
from nodesweep.conformance.jobs import TWO
from nodesweep.conformance.registry import CHECKS
from nodesweep.conformance.trial import Trial
from nodesweep.errors import NodesweepError, PreflightRefused, error_code, is_transient
from nodesweep.launch.registry import backend_of
from nodesweep.launch.sagemaker.preflight.rule import NO_PERMISSION, NO_SUCH_SERVICE
from nodesweep.scaling import names
from nodesweep.scaling.rules import offline
from nodesweep.scaling.secrets import hide_in_text
from nodesweep.tasks.preflight.facts import read_facts
from nodesweep.tasks.sweeps.owner import owned

FORMAT = "nodesweep-conformance/1"
_VERSIONS = ("nodesweep", "boto3", "botocore", "sagemaker-core", "prefect")
_ACCOUNT = re.compile(r"(?<![0-9])[0-9]{12}(?![0-9])")
AWS, LOCAL, FOREIGN = "aws", "local platform", "foreign emulator"


class BillLine(NamedTuple):
    """A line of the bill: a check, and the cost that it adds to the lines above.

    `usd` is None if the price is unknown.
    """

    check: Check
    usd: float | None
    reason: str


def chosen(names_: Sequence[str], everything: bool) -> tuple[Check, ...]:
    """Return the named checks and those that gate others; by default all that are not optional.

    Raises:
        ValueError: no check has this name.
    """
    known = [check.id for check in CHECKS]
    if unknown := sorted(set(names_) - set(known)):
        raise ValueError(f"no check is named {' or '.join(unknown)}; known: {', '.join(known)}")
    if everything:
        return CHECKS
    if not names_:
        return tuple(check for check in CHECKS if not check.optional)
    gates = {check.id for check in CHECKS if check.gates}
    return tuple(check for check in CHECKS if check.id in {*names_, *gates})


def bill(config: BenchmarkConfig, checks: Iterable[Check]) -> list[BillLine]:
    """Return the maximum cost that each check adds to the bill, without calling the platform."""
    paid: set[str] = set()
    lines = []
    for check in checks:
        bounds = [item.bound(config) for item in _new(check.pays, paid)]
        paid |= {item.name for item in check.pays}
        usd = None if any(each is None for each, _ in bounds) else sum(b or 0 for b, _ in bounds)
        lines.append(BillLine(check, usd, "; ".join(text for _, text in bounds)))
    return lines


def _new(pays: Iterable[Paid], paid: set[str]) -> list[Paid]:
    return [item for item in pays if item.name not in paid]


def bill_problem(lines: Iterable[BillLine], limit_usd: float, spent_usd: float = 0.0) -> str | None:
    """Return why these checks are refused; None if they can run.

    Args:
        lines: the bill.
        limit_usd: maximum cost.
        spent_usd: maximum cost of earlier runs with the same result file.
    """
    lines = list(lines)
    unknown = [f"{line.check.id}: {line.reason}" for line in lines if line.usd is None]
    if unknown:
        return (
            f"unknown cost: {'; '.join(unknown)}. Add the price to configs/instances.yaml, or "
            "leave these checks out"
        )
    total = spent_usd + sum(line.usd or 0.0 for line in lines)
    if total > limit_usd:
        return (
            f"the checks can cost {total:.2f} USD, more than --limit-usd {limit_usd:g}; raise it, "
            "choose fewer with --check, or lower training.max_runtime_seconds"
        )
    return None


def check_config(config: BenchmarkConfig) -> None:
    """Apply preflight's offline rules to the largest job.

    Raises:
        PreflightRefused: a rule is violated, or the jobs do not run on SageMaker.
    """
    if not backend_of(config.platform).is_aws:
        raise PreflightRefused(
            "platform.launcher: conformance checks cover SageMaker only; use a config with "
            "launcher: sagemaker"
        )
    found = offline.check(read_facts(TWO.config(config)))
    if found.problems:
        raise PreflightRefused(*found.problems)


class OtherRecord(NodesweepError):
    """The file is not a result of this config and platform."""


@dataclass
class Record:
    """The conformance result file.

    Attributes:
        path: the file's path.
        content: the JSON document.
    """

    path: Path
    content: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, config: BenchmarkConfig, where: Mapping[str, Any]) -> Record:
        """Return the record in the file, or a new one if there is no file.

        Raises:
            OtherRecord: the file is not a result of this config on this platform.
        """
        digest = names.config_digest(config)
        if not path.exists():
            content = {
                "format": FORMAT,
                "begun": _now(),
                **where,
                "region": config.platform.region,
                "config": config.name,
                "config_digest": digest[:16],
                "instance_type": config.training.instance_type,
                "distribution": config.training.distribution.kind,
                "sweep": names.sweep_id(config, datetime.now(UTC)),
                "bound_usd": 0.0,
                "jobs": [],
                "checks": {},
            }
            return cls(path, content)
        try:
            content = json.loads(path.read_bytes())
            same = (content["format"], content["config_digest"], content["platform"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise OtherRecord(
                f"{path} is not a result of this command; use another file (--result)"
            ) from None
        if same != (FORMAT, digest[:16], where["platform"]):
            raise OtherRecord(
                f"{path} is the result of a different config or platform; use another file "
                "(--result), or delete it"
            )
        return cls(path, content)

    @property
    def sweep(self) -> str:
        """The sweep id of the jobs."""
        return str(self.content["sweep"])

    @property
    def bound_usd(self) -> float:
        """Upper bound of the cost of the checks that have begun."""
        return float(self.content["bound_usd"])

    def status(self, check: Check) -> Status:
        """Return a check's status so far."""
        found: Status = self.content["checks"].get(check.id, {}).get("status", "not run")
        return found

    def begin(self, usd: float) -> None:
        """Add the maximum cost of the next check."""
        self.content["bound_usd"] = round(self.bound_usd + usd, 4)
        self.write()

    def add_job(self, name: str) -> None:
        """Record a job before it is submitted."""
        if name not in self.content["jobs"]:
            self.content["jobs"].append(name)
            self.write()

    def keep(self, check: Check, entry: Mapping[str, Any]) -> None:
        """Record a check's outcome."""
        self.content["checks"][check.id] = {"title": check.title, "at": _now(), **entry}
        self.write()

    def write(self) -> None:
        """Write the file with every check in CHECKS and the versions of the packages."""
        kept = self.content["checks"]
        self.content["written"] = _now()
        self.content["emulated"] = self.content["platform"] != AWS
        self.content["versions"] = {
            "python": machine.python_version(),
            **{name: version(name) for name in _VERSIONS},
        }
        self.content["checks"] = {
            check.id: {
                **kept.get(check.id, _open_entry(check)),
                "about": sentences_of(check.id),
            }
            for check in CHECKS
        }
        plain = json.loads(json.dumps(self.content, default=str))
        text = json.dumps(_without_accounts(plain), indent=1, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path, (text + "\n").encode(), SHARED)


def _open_entry(check: Check) -> dict[str, Any]:
    reason = {"reason": check.by_hand} if check.by_hand else {}
    return {"title": check.title, "status": "not run", **reason}


def without_accounts(text: str) -> str:
    """Return the text without account numbers and secrets."""
    return hide_in_text(_ACCOUNT.sub("<account>", text))


def _without_accounts(value: Any) -> Any:
    """Return a JSON value, with without_accounts() applied to every text in it."""
    if isinstance(value, dict):
        return {name: _without_accounts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_accounts(each) for each in value]
    return without_accounts(value) if isinstance(value, str) else value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def platform_facts(platform: PlatformConfig, client: Callable[[str], Any]) -> dict[str, Any]:
    """Return the kind of platform for the result file: AWS, local or another emulator."""
    url = client("sagemaker").meta.endpoint_url
    host = urlparse(url).hostname or ""
    if platform.credentials == "platform":
        return {"platform": LOCAL}
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
        return {"platform": AWS}
    return {"platform": FOREIGN}


def run_checks(
    record: Record,
    trial: Trial,
    lines: Sequence[BillLine],
    show: Callable[[Check, Mapping[str, Any]], None],
) -> None:
    """Run the checks, write each outcome, and stop every job.

    Args:
        record: the result file.
        trial: the state shared by the checks.
        lines: the checks with their maximum costs.
        show: called with each outcome.

    Raises:
        BotoCoreError: the platform does not respond; the result file holds the outcomes so far.
    """
    try:
        with ExitStack() as stack:
            for line in lines:
                check = line.check
                if check.pays and trial.owner is None:
                    # so that a reaper does not take the jobs for orphans
                    trial.owner = stack.enter_context(
                        owned(backend_of(trial.platform).store, trial.sweep)
                    )
                record.begin(line.usd or 0.0)
                entry = outcome(check, trial, record.content["platform"])
                record.keep(check, entry)
                show(check, entry)
                if check.gates and entry["status"] != "pass":
                    return
    finally:
        if record.content["jobs"]:
            trial.end_jobs()
    # an interrupted run still needs its jobs' outputs
    record.content["left_in_bucket"] = len(trial.delete_outputs())
    record.write()


def outcome(check: Check, trial: Trial, where: str) -> dict[str, Any]:
    """Run a check and return its entry for the result file.

    On an emulator other than nodesweep's, failed calls and missing evidence are skips.
    """
    clock = trial.clock
    began = clock.monotonic()

    def entry(status: Status, **more: Any) -> dict[str, Any]:
        return {"status": status, "seconds": round(clock.monotonic() - began, 1), **more}

    try:
        return entry("pass", answer=check.run(trial))
    except NotYet as error:
        return entry("not run", reason=str(error) if check.by_hand is None else check.by_hand)
    except Unmet as error:
        return entry("skip", reason=str(error))
    except NoEvidence as error:
        return entry("skip" if where == FOREIGN else "fail", reason=str(error))
    except Contradicted as error:
        return entry("fail", reason=str(error))
    except (BotoCoreError, ClientError, ResponseParserError, NodesweepError) as error:
        if isinstance(error, BotoCoreError) and is_transient(error):
            raise  # no response; the user can resume later
        is_lacking = error_code(error) in (
            NO_PERMISSION if where == AWS else NO_PERMISSION | NO_SUCH_SERVICE
        )
        is_skip = where == FOREIGN or is_lacking or isinstance(error, PreflightRefused)
        reason = f"{type(error).__name__}: {error}"
        return entry("skip" if is_skip else "fail", reason=reason)


def counts(record: Record) -> dict[Status, int]:
    """Return the number of checks by status."""
    found: dict[Status, int] = {"pass": 0, "fail": 0, "skip": 0, "not run": 0}
    for check in CHECKS:
        found[record.status(check)] += 1
    return found
