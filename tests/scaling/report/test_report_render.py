"""The written forms. After a wanted change run this file once with NODESWEEP_WRITE_GOLDEN=1 set."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from scaling import names
from scaling.measured import read_measured
from scaling.outcome import Clocks
from scaling.report import ScalingReport
from scaling.report.render import (
    render_csv,
    render_files,
    render_html,
    render_json,
    render_markdown,
    render_terminal,
)
from scaling.report.schema import report_schema

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = Path(__file__).parents[3] / "docs" / "report.schema.json"
# The 7-layer MLP on ml.p3.16xlarge: 99, 55, 27 and 13.5 minutes on 1, 2, 4 and 8 nodes.
REFERENCE = "nodes,train_seconds,instance_type\n" + "".join(
    f"{nodes},{minutes * 60},ml.p3.16xlarge\n" for nodes, minutes in ((1, 99), (2, 55), (4, 27), (8, 13.5))
)
HOSTILE = '<script>alert("x")</script> | `code` **bold** [a](javascript:b) & more'


@pytest.fixture
def reference(make_report) -> ScalingReport:
    return make_report(
        read_measured(REFERENCE),
        sweep_id="reference",
        provenance={"source": "AWS: Run PyTorch Lightning and native PyTorch DDP on SageMaker Training"},
    )


@pytest.fixture
def hostile(make_outcomes, make_outcome, make_report) -> ScalingReport:
    failed = make_outcome(4, reason=HOSTILE, log_tail=("```", "</pre><script>alert(1)</script>", "# head"))
    return make_report([*make_outcomes({1: 40, 2: 21}), failed], provenance={"note": HOSTILE})


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("NODESWEEP_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_reference_row_markdown_is_byte_identical(reference):
    check_golden("reference.md", render_markdown(reference))


def test_reference_row_json_is_byte_identical(reference):
    check_golden("reference.json", render_json(reference))


def test_json_follows_the_documented_schema(reference, hostile):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    assert schema == report_schema(), "refresh it: python -m scaling.report.schema > docs/report.schema.json"
    for report in (reference, hostile):
        jsonschema.Draft202012Validator(schema).validate(json.loads(render_json(report)))


def test_json_reads_back_as_the_same_report(hostile):
    assert ScalingReport.model_validate_json(render_json(hostile)) == hostile


def test_json_has_what_the_issue_lists(reference):
    report = json.loads(render_json(reference))
    assert report["platform"]["kind"] == "measured"
    assert {"nodes", "n", "train_seconds", "speedup", "efficiency", "doubling_ratio", "cost_usd"} <= set(
        report["summary"][0]
    )
    point = {"nodes", "repeat", "job_name", "status", "reason", "clocks", "world_size", "global_batch_size"}
    assert point | {"learning_rate", "final_metric"} <= set(report["points"][0])
    assert set(report["points"][0]["clocks"]) == set(Clocks.__dataclass_fields__)


def test_csv_has_a_row_per_attempt_and_every_clock(hostile):
    rows = list(csv.DictReader(io.StringIO(render_csv(hostile))))
    assert [row["status"] for row in rows] == ["Completed", "Completed", "Failed"]
    assert (rows[0]["train_seconds"], rows[0]["billable_seconds"], rows[2]["train_seconds"]) == ("40.0", "", "")
    assert rows[2]["reason"] == HOSTILE
    assert {"submit_to_end_seconds", "steady_step_seconds", "samples_padded", "final_metric_value"} <= set(rows[0])


def test_html_escapes_what_logs_and_provenance_say(hostile):
    page = render_html(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("&lt;script&gt;alert(&#34;x&#34;)") == 2


def test_html_asks_nothing_of_a_network(hostile):
    page = render_html(hostile)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", page)
    assert "default-src 'none'" in page


def test_every_title_names_the_kind_of_platform(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}, platform_kind="emulated", instance_type="ml.local.small"))
    label = "(emulated nodes, ml.local.small)"
    for text in (render_html(report), render_markdown(report)):
        assert f"Speedup {label}" in text
        assert f"Every run {label}" in text


def test_markdown_escapes_values_and_fences_logs(hostile):
    text = render_markdown(hostile)
    assert "&lt;script&gt;" in text
    assert r"\| \`code\` \*\*bold\*\* \[a\](javascript:b) &amp; more" in text
    assert "````text\n```\n</pre><script>alert(1)</script>\n# head\n````" in text


def test_markdown_tables_are_well_formed(hostile):
    lines = render_markdown(hostile).splitlines()
    tables = "\n".join(lines).split("\n\n")
    for table in (block for block in tables if block.startswith("|")):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_long_sweeps_are_cut_in_pages_and_whole_in_csv(make_outcomes, make_report):
    report = make_report(make_outcomes({1: [40.0] * 150, 2: [20.0] * 150}))
    assert "100 more are in points.csv" in render_markdown(report)
    assert render_html(report).count("<tr") == 1 + 2 + 1 + 200
    assert render_csv(report).count("\n") == 301


def test_terminal_prints_the_reference_as_its_source_does(reference):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_terminal(reference))
    text = console.export_text()
    assert "Speedup (times as given, ml.p3.16xlarge)" in text
    assert re.findall(r"\d\.\dx", text)[:3] == ["1.8x", "3.7x", "7.3x"]
    assert "Baseline" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_terminal_does_not_read_markup_in_values(hostile):
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_terminal(hostile.model_copy(update={"headline": "[bold]x[/bold] [/nothing]"})))
    assert "[bold]x[/bold] [/nothing]" in console.export_text()


def test_all_files_are_made_when_nothing_completed(make_outcome, make_report):
    files = render_files(make_report([make_outcome(1), make_outcome(2)]))
    assert set(files) == {names.REPORT_JSON, names.POINTS_CSV, names.REPORT_MARKDOWN, names.REPORT_HTML}
    assert b"no curve to draw" in files[names.REPORT_HTML]


def test_rendering_twice_gives_the_same_bytes(hostile):
    assert render_files(hostile) == render_files(hostile)
