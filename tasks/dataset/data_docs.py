"""Render the Data Docs of a validation as one self-contained HTML page.

Great Expectations' own page (1.24.1) is not used: it loads fifteen stylesheets and scripts from six
hosts and a logo from a seventh, inserts values unescaped (a cell with a script tag runs), and
prints tracebacks with local paths.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from nodesweep.configs.dataset import ExpectationConfig
from nodesweep.scaling.formats import pluralize
from nodesweep.tasks.dataset.validation_report import ValidationReport

FILES_SHOWN = 200
"""Number of files in the table, failing ones first; more only if more files fail."""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Data Docs: {{ report.dataset }}</title>
<style>
{% include "report.css" %}

:root { --good: #116329; --mild: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --good: #7ee29a; --mild: #f0b35a; } }
@media print { :root { --good: #116329; --mild: #7d4e00; } }
th, td { text-align: left; white-space: normal; vertical-align: top; }
td.number { text-align: right; }
code { font-size: .9em; overflow-wrap: anywhere; } code.name { white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
.mild { color: var(--mild); }
</style>
<main>
<p class="eyebrow">Data Docs · Great Expectations</p>
<h1>Data Docs: {{ report.dataset }}
  <span class="{{ 'good' if report.success else 'bad' }}">
    {{- 'valid' if report.success else 'not valid' }}</span></h1>
<p class="meta">{{ pluralize(report.files | length, "file") }}, \
{{ pluralize(report.rows, "row") }}, \
{{ pluralize(report.suite | length, "expectation") }} per file.
Checked {{ report.validated_at.isoformat(timespec="seconds") }}.</p>
{% for title, style, failures in [
  ("Problems", "bad", report.problems), ("Warnings", "mild", report.warnings)
] %}
{% if failures %}<h2 class="{{ style }}">{{ title }} ({{ failures | length }})</h2>
<ul>{% for failure in failures %}<li>{{ failure.message }}</li>{% endfor %}</ul>{% endif %}
{% endfor %}
<h2>Expectations</h2>
<div class="scroll" role="region" aria-label="Expectations" tabindex="0">
<table><tr><th>Result</th><th>Expectation</th><th>Arguments</th><th>Severity</th>\
<th>Files that violate it</th></tr>
{% for spec, broken in suite %}<tr>
  <td class="{{ 'bad' if broken else 'mild' if unread else 'good' }}">
    {{- 'failed' if broken else 'not checked everywhere' if unread else 'passed' }}</td>
  <td><code class="name">{{ spec.type }}</code></td>
  <td>{% for key, value in spec.kwargs.items() -%}
    <code>{{ key }}={{ value | string | truncate(200) }}</code> {% endfor %}</td>
  <td>{{ spec.severity }}</td><td>{{ broken | join(", ") }}</td></tr>
{% endfor %}</table></div>
<h2>Files</h2>
<div class="scroll" role="region" aria-label="Files" tabindex="0">
<table><tr><th>File</th><th>Result</th><th>Rows</th><th>Expectations evaluated</th>\
<th>Failures</th></tr>
{% for file in files %}<tr>
  <td><code>{{ file.file }}</code></td>
  <td class="{{ 'good' if file.success else 'bad' }}">
    {{- 'valid' if file.success else 'not valid' }}</td>
  <td class="number">{{ 'unreadable' if file.rows is none else file.rows }}</td>
  <td class="number">{{ file.expectations }}</td>\
<td class="number">{{ file.failures | length }}</td></tr>
{% endfor %}</table></div>
{% if hidden %}<p>{{ pluralize(hidden, "more valid file") }}.</p>{% endif %}
</main>
</html>
"""


def render_data_docs(report: ValidationReport) -> str:
    """Return the page as a string, in which every value from the data is escaped."""
    files = sorted(report.files, key=lambda file: file.success)
    shown = max(FILES_SHOWN, sum(not file.success for file in files))
    return _page().render(
        report=report,
        pluralize=pluralize,
        suite=_suite_results(report),
        unread=any(file.rows is None for file in files),
        files=files[:shown],
        hidden=len(files[shown:]),
    )


@lru_cache(maxsize=1)
def _page() -> Template:
    """Return the compiled template, cached because compiling takes 0.1 s."""
    return Environment(
        loader=PackageLoader("nodesweep.scaling", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    ).from_string(_PAGE)


def _suite_results(report: ValidationReport) -> list[tuple[ExpectationConfig, list[str]]]:
    """Return each expectation with the names of the files that violate it."""
    broken: dict[int | None, list[str]] = defaultdict(list)
    for failure in report.failures:
        broken[failure.index].append(failure.file or "")
    return [(spec, broken[index]) for index, spec in enumerate(report.suite)]
