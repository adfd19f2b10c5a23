"""`nodesweep run` over a prefix in S3 that no job can read: said in a line, and nothing begun."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from configs.models import BenchmarkConfig
from tests.flows.simulated_sweep import ledger, nodesweep_run

pytestmark = pytest.mark.usefixtures("prefect", "quiet")
Configs = Callable[..., BenchmarkConfig]


def table(*labels: Any) -> bytes:
    out = io.BytesIO()
    pd.DataFrame({"label": labels}).to_parquet(out)
    return out.getvalue()


CASES: dict[str, tuple[dict[str, bytes], int, str]] = {
    "nothing": ({}, 2, "no *.parquet object under s3://hostile/nothing"),
    "a-folder": ({"": b"", "sub/": b""}, 2, "no *.parquet object under s3://hostile/a-folder"),
    "truncated": (
        {"a.parquet": table(1), "b.parquet": table(2)[:-20]},
        1,
        "b.parquet can't be read as parquet",
    ),
    "empty": ({"a.parquet": b""}, 1, "a.parquet can't be read as parquet"),
    "types": (
        {"a.parquet": table(1), "b.parquet": table("1")},
        1,
        "column 'label' is int64 in a.parquet and large_string in b.parquet",
    ),
    "dots": ({"../x.parquet": table(1)}, 1, "s3://hostile/dots/../x.parquet is no path of a file"),
}


@pytest.fixture
def served(simulated: Callable[..., Any]) -> Iterator[SimpleNamespace]:
    with simulated() as platform:
        platform.s3.create_bucket(Bucket="hostile")
        yield platform


@pytest.mark.slow  # a run of the command for each
def test_what_is_wrong_is_named_with_its_exit_code_and_nothing_is_begun(
    served: SimpleNamespace, sweep_config: Configs, tmp_path: Path
) -> None:
    config = sweep_config(served)
    assert config.dataset is not None
    for name, (objects, exit_code, message) in CASES.items():
        for key, body in objects.items():
            served.s3.put_object(Bucket="hostile", Key=f"{name}/{key}", Body=body)
        dataset = config.dataset.model_copy(update={"source": f"s3://hostile/{name}/"})
        done = nodesweep_run(config.model_copy(update={"dataset": dataset}), tmp_path)
        said = " ".join(done.output.split())
        assert done.exit_code == exit_code, (name, done.output)
        assert message in said and "Traceback" not in said, done.output
    assert ledger(served) == []
    kept = served.s3.list_objects_v2(Bucket=config.platform.bucket).get("Contents", ())
    assert not [item["Key"] for item in kept if item["Key"].endswith(".parquet")]
