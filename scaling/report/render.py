"""ScalingReport -> report.json, points.csv, report.md, report.html and the terminal's table."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scaling import names
from scaling.formats import format_seconds, format_value, nodes_text
from scaling.report.model import DeviceFacts, Point, PointClocks, SampleCounts, ScalingReport, SteadyWindow
from scaling.report.plot import speedup_svg
from scaling.report.table import attempts_table, brief_table, flatten, kind_label, summary_table, titled
from scaling.speedup import FinalMetric

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Group

# A browser and a pull request stay quick up to about this many rows; points.csv has them all.
MAX_ATTEMPTS_SHOWN = 200
MAX_FAILURES_SHOWN = 20
_UNIT_SPACE = re.compile(r"(?<=\d) (?=%|(?:ms|s|min|h)\b)")
_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]|])")
_NESTED = {
    "clocks": PointClocks.model_fields,
    "final_metric": FinalMetric.model_fields,
    "steady": SteadyWindow.model_fields,
    "samples": SampleCounts.model_fields,
    "device": DeviceFacts.model_fields,
}


def render_files(report: ScalingReport) -> dict[str, bytes]:
    """Every file of the report by its name."""
    texts = {
        names.REPORT_JSON: render_json(report),
        names.POINTS_CSV: render_csv(report),
        names.REPORT_MARKDOWN: render_markdown(report),
        names.REPORT_HTML: render_html(report),
    }
    return {name: text.encode() for name, text in texts.items()}


def render_json(report: ScalingReport) -> str:
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def render_csv(report: ScalingReport) -> str:
    """One row per attempt, every clock and fact in its own column; unknown is an empty field."""
    rows = [_csv_row(point) for point in report.points]
    columns = dict.fromkeys(column for row in rows for column in row)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def render_markdown(report: ScalingReport) -> str:
    """For a pull request or a Prefect artifact."""
    return _markdown().get_template("report.md.j2").render(_context(report))


def render_html(report: ScalingReport) -> str:
    """One file without a request to anywhere: style and plot are inside."""
    from markupsafe import Markup

    svg = speedup_svg(report)
    config = json.dumps(report.config, indent=2, ensure_ascii=False) if report.config is not None else None
    # The one thing not escaped: matplotlib wrote it, and escapes the text in it.
    plot = Markup(svg) if svg is not None else None
    return _html().get_template("report.html.j2").render(_context(report), plot=plot, config_json=config)


def render_terminal(report: ScalingReport) -> Group:
    """The headline, the table and the caveats, for rich's Console.print."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    summary = brief_table(report)
    table = Table(title=Text(summary.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for heading, is_text in zip(summary.headings, summary.text_columns, strict=True):
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in row))
    caveats = [Text(f"- {caveat}", style="dim") for caveat in report.caveats]
    return Group(table, Text(report.headline, style="bold"), *caveats)


def _context(report: ScalingReport) -> dict[str, Any]:
    failures = [point for point in report.points if point.status != "Completed"]
    return {
        "report": report,
        "summary": summary_table(report),
        "attempts": attempts_table(report, MAX_ATTEMPTS_SHOWN),
        "attempts_hidden": max(0, len(report.points) - MAX_ATTEMPTS_SHOWN),
        "failures": failures[:MAX_FAILURES_SHOWN],
        "failures_hidden": max(0, len(failures) - MAX_FAILURES_SHOWN),
        "facts": [*_facts(report), *flatten(report.provenance)],
        "kind_label": kind_label(report.platform),
        "plot_title": titled("Speedup", report),
        "nodes_text": nodes_text,
        "points_csv": names.POINTS_CSV,
        "report_json": names.REPORT_JSON,
    }


def _facts(report: ScalingReport) -> list[tuple[str, str]]:
    """What a reader asks first, before the provenance that the run gave."""
    facts = [("sweep", report.sweep_id), ("generated", report.generated_at), ("scaling", report.policy_label)]
    if report.baseline is not None:
        text = f"{nodes_text(report.baseline.nodes)}, {format_seconds(report.baseline.train_seconds)}"
        facts.append(("baseline", text + (" (relative)" if report.baseline.relative else "")))
    if report.train_clock is not None:
        facts.append(("train clock", report.train_clock))
    if report.platform.isolation is not None:
        facts.append(("isolation", report.platform.isolation))
    price = report.price
    if price.usd_per_hour is None:
        facts.append(("price", f"unknown: {price.reason}"))
    else:
        rate = f"{format_value(price.usd_per_hour)} USD per node-hour, {price.purchase_option}"
        facts.append(("price", ", ".join(part for part in (rate, price.region, price.date, price.source) if part)))
    return facts


def _csv_row(point: Point) -> dict[str, Any]:
    """The point's fields flattened: clocks.train_seconds becomes train_seconds, samples.padded samples_padded."""
    row: dict[str, Any] = {}
    for key, value in point.model_dump(mode="json", exclude={"log_tail"}).items():
        names_within = value if key == "phases" else _NESTED.get(key)
        if names_within is None:
            row[key] = value
        else:
            prefix = "" if key == "clocks" else f"{key}_"
            row |= {f"{prefix}{name}": (value or {}).get(name) for name in names_within}
    return row


class _Verbatim(str):
    """Markdown that is meant as such."""


@lru_cache(maxsize=1)
def _html() -> Environment:
    environment = _environment(autoescape=True)
    environment.filters["keep_units"] = _keep_units
    return environment


@lru_cache(maxsize=1)
def _markdown() -> Environment:
    """Every value that a template prints is escaped (finalize), unless it is a _Verbatim."""
    environment = _environment(autoescape=False, finalize=_markdown_text)
    environment.filters["code_block"] = _code_block
    return environment


def _environment(**options: Any) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("scaling")
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options)


def _keep_units(text: str) -> str:
    """The text with no line break between a number and its unit."""
    return _UNIT_SPACE.sub("\N{NO-BREAK SPACE}", text)


def _markdown_text(value: object) -> str:
    """The value as plain text in one line of Markdown, whatever is in it."""
    if isinstance(value, _Verbatim):
        return value
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN_SPECIAL.sub(r"\\\1", text)


def _code_block(lines: tuple[str, ...]) -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return _Verbatim("\n".join([f"{fence}text", *lines, fence]))
