"""The reference of the history's columns."""

from __future__ import annotations

import re

from docs.site.build import with_references
from docs.site.history_tables import history_tables
from nodesweep.scaling.report.frames import SUMMARY
from nodesweep.scaling.trend.history import COLUMNS


def test_table_and_statement_have_every_column_once() -> None:
    table, statement = history_tables(COLUMNS).split("```sql\n")
    assert re.findall(r"^\| `(\w+)` \| (\w+) \| (yes|no) \| (.+) \|$", table, re.MULTILINE) == [
        (column.name, column.sql, "yes" if column.nullable else "no", column.meaning)
        for column in COLUMNS
    ]
    assert re.findall(r"^  `(\w+)` (\w+),?$", statement, re.MULTILINE) == [
        (column.name, column.sql) for column in COLUMNS
    ]
    assert statement.startswith("CREATE EXTERNAL TABLE nodesweep_history_v1 (")


def test_the_page_of_the_history_has_them() -> None:
    page = with_references("## Columns\n\n<!-- reference: history -->\n")
    assert history_tables(COLUMNS) in page


def test_a_column_means_the_same_in_the_history_and_in_the_summary() -> None:
    shared = {column.name: column.meaning for column in COLUMNS if column.name in SUMMARY}
    differing = {name for name, meaning in shared.items() if meaning != SUMMARY[name].meaning}
    # a run's own value in the history, statistics of several runs or other marks in the summary
    assert differing == {"train_seconds", "billable_seconds", "run_usd", "flags"}
