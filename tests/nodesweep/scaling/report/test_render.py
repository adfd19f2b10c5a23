"""The written forms of a report. After an intended change, run this file once with
NODESWEEP_WRITE_GOLDEN=1."""

from __future__ import annotations

import html
import json
import os
import re
from base64 import b64decode
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from nodesweep.scaling import names
from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.measured.table import read_measured
from nodesweep.scaling.outcome.outcome import Clocks
from nodesweep.scaling.report import ScalingReport
from nodesweep.scaling.report.facts import costs_text
from nodesweep.scaling.report.plots import draw_plots
from nodesweep.scaling.report.render import (
    render_csv,
    render_files,
    render_html,
    render_json,
    render_markdown,
)
from nodesweep.scaling.report.schema import report_schema
from nodesweep.scaling.report.tables.attempts import attempts_table
from nodesweep.scaling.report.tables.cells import hidden_node_counts, hidden_note
from nodesweep.scaling.report.tables.costs import costs_table
from nodesweep.scaling.report.tables.fits import extrapolation_text, fits_table, law_verdict
from nodesweep.scaling.report.tables.summary import clocks_table, main_table, parity_lines

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = Path(__file__).parents[4] / "docs" / "report.schema.json"
# The 7-layer MLP on ml.p3.16xlarge: 99, 55, 27 and 13.5 minutes on 1, 2, 4 and 8 nodes.
REFERENCE = "nodes,train_seconds,instance_type\n" + "".join(
    f"{nodes},{minutes * 60},ml.p3.16xlarge\n"
    for nodes, minutes in ((1, 99), (2, 55), (4, 27), (8, 13.5))
)
PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6, source="a list", date="2026-01-01")
HOSTILE = '<script>alert("x")</script> | `code` **bold** [a](javascript:b) & more'


@pytest.fixture
def reference(make_report) -> ScalingReport:
    return make_report(
        read_measured(REFERENCE),
        sweep_id="reference",
        provenance={
            "source": "AWS: Run PyTorch Lightning and native PyTorch DDP on SageMaker Training"
        },
    )


@pytest.fixture
def hostile(make_outcomes, make_outcome, make_report) -> ScalingReport:
    failed = make_outcome(
        4, reason=HOSTILE, log_tail=("```", "</pre><script>alert(1)</script>", "# head")
    )
    return make_report([*make_outcomes({1: 40, 2: 21}), failed], provenance={"note": HOSTILE})


def words(page: str) -> str:
    """Return the page with plain spaces and quotes."""
    return html.unescape(page).replace("\N{NO-BREAK SPACE}", " ")


def section(page: str, heading: str) -> str:
    [found] = [part for part in page.split("<h2>") if part.startswith(f"{heading}</h2>")]
    return found.partition("</section>")[0]


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
    assert schema == report_schema(), (
        "refresh it: python -m nodesweep.scaling.report.schema > docs/report.schema.json"
    )
    for report in (reference, hostile):
        jsonschema.Draft202012Validator(schema).validate(json.loads(render_json(report)))


def test_json_reads_back_as_the_same_report(hostile):
    assert ScalingReport.model_validate_json(render_json(hostile)) == hostile


def test_json_has_the_platform_the_rows_and_the_clocks(reference):
    report = json.loads(render_json(reference))
    assert report["platform"]["kind"] == "measured"
    assert {"nodes", "n", "clocks", "costs", "parity", "flags"} <= set(report["summary"][0])
    assert set(report["points"][0]["clocks"]) == set(Clocks.model_fields)


def test_a_page_says_how_many_runs_and_failures_it_does_not_show(
    make_outcomes, make_outcome, make_report, monkeypatch
):
    monkeypatch.setattr("nodesweep.scaling.report.render.MAX_FAILURES_SHOWN", 1)
    monkeypatch.setattr("nodesweep.scaling.report.render.MAX_ATTEMPTS_SHOWN", 3)
    failed = [make_outcome(2, repeat=repeat) for repeat in (3, 9)]
    report = make_report([*make_outcomes({1: [40.0] * 6, 2: [21.0] * 6}), *failed])
    assert re.search(r'>11 [a-z ]+<a href="points.csv">', render_html(report))
    assert re.search(r"^1 [a-z ]+ report\.json\.$", render_markdown(report), re.MULTILINE)


def test_html_escapes_what_logs_and_provenance_say(hostile):
    page = render_html(hostile)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("&lt;script&gt;alert(&#34;x&#34;)") == 2


@pytest.mark.usefixtures("pages_with_plots")
def test_html_asks_nothing_of_a_network(hostile):
    page = render_html(hostile)
    assert set(re.findall(r"<(\w+)[^>]*\s(?:href|src)\s*=", page)) == {"a", "img"}
    sources = re.findall(r'<img src="([^"]+)"', page)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", page)
    assert "default-src 'none'" in page
    assert "base-uri 'none'; form-action 'none'" in page, "default-src is for neither"


@pytest.mark.usefixtures("pages_with_plots")
def test_every_title_names_the_kind_of_platform(make_outcomes, make_report, snapshot):
    report = make_report(
        make_outcomes(
            {1: 40, 2: 21, 4: 12},
            platform_kind="emulated",
            instance_type="ml.x",
            clocks=Clocks(train_seconds=40, billable_seconds=50),
            phases={"Training": 40.0},
        ),
        price=PRICE,
    )
    label = "(emulated nodes, ml.x)"
    page = render_html(report)
    tables = re.findall(r"<caption><span><b>(.*?)</b>", page)
    plots = re.findall(r'<img src="[^"]+" alt="(.*?)\. ', page)
    assert all(title.endswith(f" {label}") for title in [*tables, *plots])
    whole = [title.removesuffix(f" {label}") for title in tables if ": " not in title]
    headings = [line[3:] for line in render_markdown(report).splitlines() if line.startswith("## ")]
    assert {
        "tables": whole,
        "plots": [title.removesuffix(f" {label}") for title in plots],
        "markdown": [heading for heading in headings if heading.endswith(label)],
    } == snapshot


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
    page = render_html(report)
    assert re.search(r'>100 [a-z ]+<a href="points.csv">', page)
    assert len(re.findall(r'<tr id="run-\d+"', page)) == 200
    assert render_csv(report).count("\n") == 301


def test_many_node_counts_are_cut_and_say_so(make_outcomes, make_report):
    report = make_report(make_outcomes({nodes: 1e4 / nodes for nodes in range(1, 131)}))
    assert hidden_node_counts(report) == 30
    note = hidden_note(report)
    assert note in render_html(report) and note in render_markdown(report)


def test_page_of_200_attempts_is_below_a_megabyte(make_outcomes, make_report):
    times = {nodes: [100 / nodes + repeat for repeat in range(20)] for nodes in range(1, 11)}
    phases = {"Starting": 9.0, "Downloading": 3.0, "Training": 40.0}
    report = make_report(make_outcomes(times, phases=phases, output_uri="s3://bucket/" + "x" * 150))
    assert len(report.points) == 200
    assert len(render_html(report).encode()) < 1_000_000


def test_page_has_recommendation_clocks_fits_cost_and_sources(make_outcomes, make_report):
    times = {nodes: 100 * (0.02 + 0.98 / nodes) for nodes in (1, 2, 4, 8, 16)}
    outcomes = [
        outcome
        for nodes, seconds in times.items()
        for outcome in make_outcomes(
            {nodes: seconds},
            clocks=Clocks(
                train_seconds=seconds,
                billable_seconds=seconds + 10,
                submit_to_end_seconds=seconds + 99,
            ),
        )
    ]
    report = make_report(
        outcomes, price=PRICE, provenance={"image_uri": "repo@sha256:1", "torch": "2.9"}
    )
    page = words(render_html(report))
    advice = report.recommendation
    assert f'<p class="chosen">{advice.chosen.nodes} nodes</p>' in page
    tables = (main_table(report), clocks_table(report), costs_table(report), fits_table(report))
    texts = [
        *(choice.reason for choice in (advice.chosen, advice.runner_up, *advice.rejected)),
        *(law_verdict(law) for law in report.fits.laws),
        *report.fits.left_out.values(),
        *(table.caption for table in tables),
        extrapolation_text(report),
        costs_text(report),
    ]
    assert [text for text in texts if text not in page] == []
    assert "<dt>torch</dt><dd>2.9</dd>" in page and page.count("repo@sha256:1") == 1


def test_no_node_count_chosen_is_said(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 40, 2: 21}))
    advice = report.recommendation.model_copy(update={"chosen": None, "runner_up": None})
    page = render_html(report.model_copy(update={"recommendation": advice}))
    assert '<p class="chosen">No node count</p>' in page
    assert "<dt>Chosen" not in page and "<dt>Runner-up" not in page


def test_page_headings_are_in_order_ids_unique_and_links_lead_somewhere(hostile):
    page = render_html(hostile)
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert {"run-1", "run-3"} <= set(re.findall(r'href="#([^"]+)"', page))
    assert '<html lang="en">' in page and 'class="skip"' in page


def test_jobs_link_to_the_console_and_show_their_result(make_outcomes, make_report):
    report = make_report(
        make_outcomes({1: 40, 2: 21}, region="eu-west-1", output_uri="s3://b/o.tar.gz")
    )
    page = render_html(report)
    url = "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/sweep-n1-r1-a1-abcd"
    assert (
        f'<a href="{url}" rel="noreferrer">sweep-n1-r1-a1-abcd</a><small>s3://b/o.tar.gz</small>'
        in page
    )


@pytest.mark.usefixtures("pages_with_plots")
def test_plot_labels_hold_the_numbers(reference):
    drawings = draw_plots(reference).values()
    page = render_html(reference)
    assert all(f'alt="{drawing.title}. {drawing.numbers}"' in page for drawing in drawings)


def test_all_files_are_made_when_nothing_completed(make_outcome, make_report, snapshot):
    files = render_files(make_report([make_outcome(1), make_outcome(2)]))
    assert set(files) == {
        names.REPORT_JSON,
        names.POINTS_CSV,
        names.REPORT_MARKDOWN,
        names.REPORT_HTML,
    }
    assert section(files[names.REPORT_HTML].decode(), "Plots") == snapshot


@pytest.mark.usefixtures("pages_with_plots")
def test_the_page_says_why_a_plot_is_missing(reference, make_outcomes, make_report, snapshot):
    plots = section(render_html(reference), "Plots")
    assert plots.count("<figure") == 3
    assert plots.rpartition("</figure>")[2] == snapshot(name="no phases")
    on_spot = make_report(make_outcomes({1: 40, 2: 21}, spot=True))
    assert section(render_html(on_spot), "Plots") == snapshot(name="all on spot capacity")


def test_the_verdict_on_the_final_metric_is_told(make_outcome, make_report):
    def run(nodes, value):
        return make_outcome(
            nodes, 40 / nodes, metrics={"final_metric": {"name": "a", "value": value, "goal": None}}
        )

    report = make_report([run(1, 0.9), run(2, 0.5), run(4, 0.9)])
    [line] = parity_lines(report)
    page, text = render_html(report), render_markdown(report)
    assert f'<p class="legend">{line}</p>'.replace("'", "&#39;") in page
    assert f"\n- {line}\n" in text
    assert page.count('<p class="legend">4 nodes') == 0


def test_rates_are_told_per_sample_in_every_form(make_outcomes, make_report):
    report = make_report(make_outcomes({1: 0.002, 2: 0.0011, 4: 0.0006}, train_clock="throughput"))
    assert re.search(r"t1 = [\d.]+ ms per sample,", render_markdown(report))
    assert "<dd>1 node, 2 ms per sample</dd>" in render_html(report)


def test_failed_run_shows_its_node_and_the_last_lines_of_that_node_apart(
    make_outcomes, make_outcome, make_report
):
    failed = make_outcome(
        4, failed_host="algo-3", log_tail=("algo-3: boom",), other_log_tail=("algo-1: lost",)
    )
    report = make_report([*make_outcomes({1: 40, 2: 21}), failed])
    markdown, page = render_markdown(report), render_html(report)
    own, others = "```text\nalgo-3: boom\n```", "```text\nalgo-1: lost\n```"
    assert re.search(f"algo-3\n\n{own}\n\n[A-Za-z ]+:\n\n{others}", markdown)
    assert " algo-3</p>" in page
    assert ' algo-3">algo-3: boom</pre>' in page
    assert ">algo-1: lost</pre>" in page


def test_interruptions_stand_beside_the_status_of_a_run(
    make_outcomes, make_outcome, make_report, snapshot
):
    run = make_outcome(2, 21.0, 2, metrics={"interruptions": 1}, spot=True)
    report = make_report([*make_outcomes({1: 40, 2: 21}), run])
    status = attempts_table(report).cells["status"].iloc[2]
    assert status == snapshot
    assert status in render_html(report)


@pytest.mark.usefixtures("pages_with_saved_plots")
def test_plots_are_files_of_the_same_bytes_and_pictures_of_the_markdown_where_it_is_given_them(
    reference,
):
    files = render_files(reference)
    assert render_files(reference) == files
    plots = {
        names.plot_name(kind, ending)
        for kind in ("speedup", "efficiency", "cost")
        for ending in ("svg", "png")
    }
    assert plots <= set(files)
    assert files["speedup.svg"].startswith(b"<?xml") and files["speedup.png"].startswith(b"\x89PNG")
    pictures = {"speedup": files["speedup.svg"], "cost": files["cost.svg"]}
    text = render_markdown(reference, pictures)
    found = re.findall(r"^!\[(.+?)\]\(data:image/svg\+xml;base64,(\S+)\)$", text, re.MULTILINE)
    assert [b64decode(source) for _, source in found] == list(pictures.values())
    assert [words.partition(" ")[0] for words, _ in found] == ["speedup", "cost"]
    without = re.sub(r"^!\[.*\n\n", "", text, flags=re.MULTILINE)
    assert without == render_markdown(reference) == files["report.md"].decode()


def test_tables_have_scopes_and_the_meaning_of_each_heading(reference):
    page = render_html(reference)
    meaning = main_table(reference).meanings["S"]
    assert f'<th scope="col"><span title="{meaning}">S</span></th>' in page
    assert '<th scope="row"><a href="#run-1">1</a></th>' in page
    assert '<tr id="run-1">\n<th scope="row">1</th>' in page


def test_a_failed_run_is_marked_and_keeps_its_link(hostile):
    page = render_html(hostile)
    assert '<th scope="row"><span class="bad"><a href="#run-3">4</a><small>failed (1)' in page
    assert '<th scope="row"><span class="bad">4</span></th>' in page


def test_names_in_tables_are_escaped(make_outcome, make_report):
    names_of = {"job_name": HOSTILE, "output_uri": HOSTILE, "region": "us-east-1"}
    page = render_html(make_report([make_outcome(1, 40.0, **names_of)]))
    assert "<script" not in page and page.count("&lt;script&gt;") >= 2
