"""A job gets secrets, prints them and fails with them; nothing that a run stores or shows contains
them."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from nodesweep.cli.commands.plan import plan_of, requests_of
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import HIDDEN
from nodesweep.flows.scaling_benchmark import SweepResult
from sagemaker_emulator.interfaces import JobSpec, Node
from tests.flows.simulated_sweep import kept_records, measure
from tests.secret_spellings import SECRET, TEXTS, X

KNOWN = "Tr0ub4dor & 3/über"
"""Has no shape of a secret; nodesweep knows it as the value of api_key."""
MARKS = (X[:20], "IOSFODNN", "ub4dor", base64.b64encode(KNOWN.encode()).decode())
ONE_LINERS = [text for text in TEXTS if "PRIVATE KEY" not in text]
LINES = [" | ".join(ONE_LINERS[place : place + 4]) for place in range(0, len(ONE_LINERS), 4)]
KEY = ["-----BEGIN RSA PRIVATE KEY-----", X * 2, X, "-----END RSA PRIVATE KEY-----"]
PRINTED = [
    f"Command: train.py --user me {KNOWN}", json.dumps([KNOWN]), repr({"x": KNOWN}), quote(KNOWN),
    quote(KNOWN, safe=""), base64.b64encode(KNOWN.encode()).decode(), f"x{KNOWN}y",
]  # fmt: skip


def leak(job: JobSpec, node: Node, say: Callable[[str], None], stop: threading.Event) -> None:
    for line in (*KEY, *LINES, *PRINTED):
        say(line)
    raise ValueError(f"ExecuteUserScriptError: {LINES[0]} {LINES[-1]} {PRINTED[0]}")


def outputs_of(
    served: SimpleNamespace, config: BenchmarkConfig, result: SweepResult
) -> dict[str, str]:
    """Return the text of each output by name: files of the run, objects in the bucket, Prefect's
    database, and the request dump."""
    found = {
        path.name: path.read_text() for path in result.folder.iterdir() if path.suffix in _TEXTS
    }
    requests = requests_of(config, plan_of(config)).requests
    for name in [name for name in requests[0]["Environment"] if name.startswith("PLAIN_")]:
        del requests[0]["Environment"][name]  # shown, to whoever wrote the config
    found["request dump"] = json.dumps(requests)
    pages = served.s3.get_paginator("list_objects_v2").paginate(Bucket=config.platform.bucket)
    for key in (item["Key"] for page in pages for item in page.get("Contents", ())):
        body = served.s3.get_object(Bucket=config.platform.bucket, Key=key)["Body"].read()
        if f"{result.sweep_id}.parquet" in key:
            found["history"] = str(pq.read_table(io.BytesIO(body)).to_pylist())
        elif result.sweep_id in key:
            found[f"bucket {key}"] = body.decode(errors="replace")
    kept = kept_records(result.sweep_id)
    # what a deployment's run is started with again; docs/security.md says that they are shown
    for run in kept.flow_runs:
        if isinstance(preset := run["parameters"].get("preset"), dict):
            preset["training"].pop("hyperparameters", None)
    found["flow parameters"] = json.dumps(kept.flow_runs)
    for kind in ("logs", "artifacts", "task_runs"):
        assert getattr(kept, kind), f"Prefect has no {kind}"
        found[f"Prefect's {kind}"] = json.dumps(getattr(kept, kind))
    return found


_TEXTS = (".json", ".md", ".html", ".csv", ".svg")
WITH_HIDDEN = (
    "report.json", "report.md", "report.html", "sweep.json", "request dump", "history",
    "flow parameters", "terminal",
)  # fmt: skip
"""Outputs in which a secret would stand, so that something has to be hidden there."""


@pytest.mark.usefixtures("prefect")
@pytest.mark.prefect_events
@pytest.mark.drawn
@pytest.mark.pages
def test_no_output_of_a_run_shows_a_secret_however_it_is_spelled(
    served: SimpleNamespace,
    pipeline_config: Callable[..., BenchmarkConfig],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.engine.programs['"leaky"'] = leak
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.DEBUG, "nodesweep")
    environment = {name: X for name in SECRET if name.isidentifier()} | {
        f"PLAIN_{place}": X for place in range(9)
    }
    hyperparameters: dict[str, Any] = {
        f"text-{place}": "\n".join(TEXTS[place : place + 3]) for place in range(0, len(TEXTS), 3)
    }
    hyperparameters |= {
        "batch-size": "{per_replica_batch_size}",
        "lr": "{learning_rate}",
        "program": "leaky",
        "api_key": KNOWN,
    }
    config = pipeline_config(
        "leaky",
        sweep={"node_counts": [1]},
        image={"context": "image", "build_args": {name: X for name in environment}},
        training={
            "environment": environment,
            "hyperparameters": dict.fromkeys(SECRET, X) | hyperparameters,
        },
    )
    result = measure(config)
    assert len(SECRET) + len(TEXTS) > 70 and result.missing_points == 1
    [job] = served.sagemaker.list_training_jobs(NameContains=result.sweep_id)[
        "TrainingJobSummaries"
    ]
    sent = served.sagemaker.describe_training_job(TrainingJobName=job["TrainingJobName"])
    assert sent["Environment"]["HF_TOKEN"] == X and X in sent["FailureReason"], (
        "the job itself has them"
    )
    outputs = outputs_of(served, config, result) | {"terminal": caplog.text}
    shown = {name for name, text in outputs.items() if any(mark in text for mark in MARKS)}
    assert shown == set()
    assert {name for name in WITH_HIDDEN if HIDDEN not in outputs[name]} == set()
