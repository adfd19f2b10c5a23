"""Render a ScalingReport as report.json, points.csv, report.md, report.html and plot files."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from nodesweep.scaling import names
from nodesweep.scaling.analysis.hour_value import hour_value_text
from nodesweep.scaling.formats import escape_markdown, nodes_text
from nodesweep.scaling.names import PlotKind
from nodesweep.scaling.report.facts import (
    BASIS_TEXTS,
    RULE_TEXTS,
    condition_facts,
    costs_text,
    provenance_facts,
    sweep_facts,
)
from nodesweep.scaling.report.guidance import find_guidance, out_of_memory_by_index
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.page_table import page_table, split_table
from nodesweep.scaling.report.plots import (
    Drawing,
    draw_plots,
    drawing_style,
    to_png,
    to_svg,
)
from nodesweep.scaling.report.points_csv import render_csv
from nodesweep.scaling.report.share import without_account_names
from nodesweep.scaling.report.table import TEXT_HEADINGS, kind_label, titled
from nodesweep.scaling.report.tables.attempts import (
    MAX_ATTEMPTS_SHOWN,
    attempt_links,
    attempts_table,
    console_url,
    run_anchor,
)
from nodesweep.scaling.report.tables.budget import budget_table, loss_lines
from nodesweep.scaling.report.tables.cells import (
    MAX_NODE_COUNTS_SHOWN,
    TIME_PER_SAMPLE,
    shown_rows,
    time_unit,
)
from nodesweep.scaling.report.tables.costs import costs_table, price_text
from nodesweep.scaling.report.tables.fits import (
    extrapolation_text,
    fits_table,
    law_line,
    law_verdict,
)
from nodesweep.scaling.report.tables.instances import arms_table, of_all_types, predicted_table
from nodesweep.scaling.report.tables.predicted import (
    predicted_counts_table,
    predicted_lines,
    predicted_terms_table,
)
from nodesweep.scaling.report.tables.remedies import remedies_table
from nodesweep.scaling.report.tables.summary import (
    clocks_table,
    compact_table,
    main_links,
    main_table,
    no_result_text,
    parity_lines,
)
from nodesweep.scaling.report.terminal import render_terminal

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

__all__ = [
    "render_csv",
    "render_files",
    "render_html",
    "render_json",
    "render_markdown",
    "render_share",
    "render_terminal",
]
MAX_FAILURES_SHOWN = 20
FIRST_OF_MAIN = ("T", TIME_PER_SAMPLE, "S", "S to target", "E", "cost", "D")
FIRST_OF_TYPES = ("T", "cost", "verdict", "front", "S", "E")
_OF_TYPES = frozenset({"types", "frontier"})
_IN_SECTIONS = _OF_TYPES | {"parts"}
FIRST_OF_ATTEMPTS = ("status", "train", TIME_PER_SAMPLE, "log", "cost", "billable")
"""Columns that split_table() shows first, in order of importance."""
_CODE = re.compile(r"`([^`]+)`")
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:ms|s|min|h)\b)")


def render_files(report: ScalingReport, logs: Collection[str] = ()) -> dict[str, bytes]:
    """Return the files of a report by name; there are no plots if nothing completed.

    Args:
        report: The report.
        logs: Links to the log files that are kept, as names.log_link() makes them.
    """
    drawings, svgs = _draw_plots(report)
    with drawing_style():
        pngs = {kind: to_png(drawing) for kind, drawing in drawings.items()}
    texts = {
        names.REPORT_JSON: render_json(report),
        names.POINTS_CSV: render_csv(report),
        names.REPORT_MARKDOWN: render_markdown(report),
        names.REPORT_HTML: _page(report, drawings, svgs, logs),
    }
    files = {name: text.encode() for name, text in texts.items()}
    plots = {"svg": svgs, "png": pngs}
    return files | {
        names.plot_name(kind, extension): plot
        for extension, of_kinds in plots.items()
        for kind, plot in of_kinds.items()
    }


def render_json(report: ScalingReport) -> str:
    """Return the report as JSON that matches docs/report.schema.json, with unrounded numbers."""
    return report.model_dump_json(indent=2) + "\n"


def render_markdown(report: ScalingReport, pictures: Mapping[PlotKind, bytes] | None = None) -> str:
    """Return the report as Markdown, for a pull request.

    Args:
        report: The report.
        pictures: SVG plots to embed, for a Prefect artifact, which cannot link to files.
    """
    sources = {kind: _Verbatim(_data_url(svg)) for kind, svg in (pictures or {}).items()}
    return (
        _markdown()
        .get_template("report.md.j2")
        .render(_context(report), table=compact_table(report), pictures=sources)
    )


def render_html(report: ScalingReport) -> str:
    """Return the report as one self-contained HTML page with its style and plots embedded."""
    return _page(report, *_draw_plots(report))


def render_share(report: ScalingReport) -> str:
    """Return the page to share outside the account.

    It links to no other files and contains no names of the account; see without_account_names().
    """
    shared = without_account_names(report)
    return _page(shared, *_draw_plots(shared), is_shared=True)


def _draw_plots(report: ScalingReport) -> tuple[dict[PlotKind, Drawing], dict[PlotKind, bytes]]:
    with drawing_style():
        drawings = draw_plots(report)
        return drawings, {kind: to_svg(drawing) for kind, drawing in drawings.items()}


def _page(
    report: ScalingReport,
    drawings: Mapping[PlotKind, Drawing],
    svgs: Mapping[PlotKind, bytes],
    logs: Collection[str] = (),
    is_shared: bool = False,
) -> str:
    drawn = [(drawing, _data_url(svgs[kind])) for kind, drawing in drawings.items()]
    plots = [(drawing, svg) for drawing, svg in drawn if drawing.kind not in _IN_SECTIONS]
    types = types_context(report)
    if types is not None:
        types["html"] = split_table(types["table"], (types["kind"], "N"), FIRST_OF_TYPES)
        types["predicted_html"] = types["predicted"] and page_table(types["predicted"])
        types["plots"] = [(drawing, svg) for drawing, svg in drawn if drawing.kind in _OF_TYPES]
    config = (
        json.dumps(report.config, indent=2, ensure_ascii=False)
        if report.config is not None
        else None
    )
    main, predicted = main_table(report), predicted_counts_table(report)
    terms = predicted_terms_table(report)
    budget, remedies = budget_table(report), remedies_table(report)
    clocks, costs, fits = clocks_table(report), costs_table(report), fits_table(report)
    attempts = attempts_table(report, logs)
    return (
        _html()
        .get_template("report.html.j2")
        .render(
            _context(report) | {"types": types},
            plots=plots,
            parts=[(drawing, svg) for drawing, svg in drawn if drawing.kind == "parts"],
            plot_file=names.plot_name,
            has_phases="phases" in drawings,
            config_json=config,
            price=price_text(report.price),
            is_shared=is_shared,
            main=main,
            main_html=split_table(
                main,
                ("N",),
                FIRST_OF_MAIN,
                {"N": main_links(report)},
                [place for place, row in enumerate(shown_rows(report)) if not row.n],
                "status",
            ),
            predicted_html=predicted and page_table(predicted),
            predicted_terms_html=terms and page_table(terms),
            budget_html=budget and page_table(budget),
            remedies_html=remedies and page_table(remedies),
            clocks=clocks and page_table(clocks),
            costs=costs and page_table(costs),
            fits=fits and page_table(fits),
            law_verdict=law_verdict,
            attempts=split_table(
                attempts,
                ("N", "repeat", "attempt"),
                FIRST_OF_ATTEMPTS,
                attempt_links(report, logs, not is_shared),
                [
                    place
                    for place, point in enumerate(report.points[: len(attempts.cells)])
                    if point.status != "Completed"
                ],
            ),
        )
    )


def _context(report: ScalingReport) -> dict[str, Any]:
    """Return the values that both the HTML and the Markdown template print."""
    failures = [
        (number, point)
        for number, point in enumerate(report.points, start=1)
        if point.status != "Completed"
    ]
    out_of_memory = out_of_memory_by_index(report)
    return {
        "report": report,
        "text_headings": TEXT_HEADINGS,
        "kind_label": kind_label(
            (report if report.instances is None else of_all_types(report)).platform,
            report.train_clock,
        ),
        "titled": lambda title: titled(title, report),
        "rule": RULE_TEXTS,
        "basis": BASIS_TEXTS,
        "rejected_shown": MAX_NODE_COUNTS_SHOWN,
        "costs_text": costs_text(report),
        "predicted": predicted_counts_table(report),
        "predicted_terms": predicted_terms_table(report),
        "predicted_lines": predicted_lines(report),
        "budget": budget_table(report),
        "loss_lines": loss_lines(report),
        "remedies": remedies_table(report),
        "hour_values": hour_value_text(report.hour_values),
        "law_lines": [law_line(law, time_unit(report.train_clock)) for law in report.fits.laws],
        "extrapolation": extrapolation_text(report),
        "failures": [
            (
                point,
                run_anchor(number) if number <= MAX_ATTEMPTS_SHOWN else None,
                console_url(report, point),
                out_of_memory.get(number - 1),
            )
            for number, point in failures[:MAX_FAILURES_SHOWN]
        ],
        "guidance": find_guidance(report),
        "failures_hidden": max(0, sum(row.n_failed for row in report.summary) - MAX_FAILURES_SHOWN),
        "attempts_hidden": max(0, len(report.points) - MAX_ATTEMPTS_SHOWN),
        "parity_lines": parity_lines(report),
        "no_result": no_result_text(report),
        "facts": [*sweep_facts(report), *condition_facts(report), *provenance_facts(report)],
        "nodes_text": nodes_text,
        "types": types_context(report),
        "points_csv": names.POINTS_CSV,
        "report_json": names.REPORT_JSON,
    }


def types_context(report: ScalingReport) -> dict[str, Any] | None:
    """Return the values that the templates print for several arms; None for a single one."""
    comparison = report.instances
    if comparison is None:
        return None
    chosen = comparison.chosen
    own = {arm.name for arm in comparison.arms if arm.n or arm.n_failed}
    return {
        "table": arms_table(report, comparison),
        "predicted": predicted_table(report, comparison),
        "chosen": (
            f"No {comparison.kind}"
            if chosen is None
            else f"{chosen.text} (predicted)"
            if chosen.predicted
            else chosen.text
        ),
        "kind": comparison.kind,
        "word": comparison.word,
        "answers": comparison.answers,
        "main": comparison.main,
        "reported": [name for name in comparison.names if name in own],
        "page": lambda name: names.of_arm(name, names.REPORT_HTML),
        "plots": [],
    }


def _data_url(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{b64encode(svg).decode()}"


class _Verbatim(str):
    """Text that is already Markdown, so it is not escaped."""


@lru_cache(maxsize=1)
def _html() -> Environment:
    environment = _environment(autoescape=True)
    environment.filters["prose"] = _prose
    return environment


@lru_cache(maxsize=1)
def _markdown() -> Environment:
    """Return the environment whose templates escape every printed value except a _Verbatim."""
    environment = _environment(autoescape=False, finalize=_markdown_text)
    environment.filters["code_block"] = _code_block
    return environment


def _environment(**options: Any) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("nodesweep.scaling")
    return Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )


def _prose(text: str) -> Markup:
    """Return a text as HTML: `commands` as code, and numbers and units on the same line."""
    from markupsafe import Markup, escape

    line = _UNIT_SPACE.sub("\N{NO-BREAK SPACE}", str(escape(text)))
    return Markup(_CODE.sub(r"<code>\1</code>", line))


def _markdown_text(value: object) -> str:
    """Return a value as one line of Markdown, escaped unless it is a _Verbatim."""
    if isinstance(value, _Verbatim):
        return value
    return escape_markdown(str(value))


def _code_block(lines: tuple[str, ...]) -> str:
    """Return a fenced code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return _Verbatim("\n".join([f"{fence}text", *lines, fence]))
