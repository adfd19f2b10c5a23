"""Render the history's columns, and its CREATE TABLE statement for Athena, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from nodesweep.scaling.trend.history import COLUMNS, HISTORY_SCHEMA_VERSION, Column


def history_tables(columns: Sequence[Column]) -> str:
    """Return a table of the columns, then the SQL statement."""
    rows = "\n".join(
        f"| `{column.name}` | {column.sql} | {'yes' if column.nullable else 'no'}"
        f" | {column.meaning} |"
        for column in columns
    )
    table = f"| column | type | nullable | meaning |\n|---|---|---|---|\n{rows}"
    return f"{table}\n\n```sql\n{create_table(columns)}\n```"


def create_table(columns: Sequence[Column]) -> str:
    """Return the statement for Athena, with the placeholders BUCKET and PREFIX."""
    version = f"v{HISTORY_SCHEMA_VERSION}"
    listed = ",\n".join(f"  `{column.name}` {column.sql}" for column in columns)
    return (
        f"CREATE EXTERNAL TABLE nodesweep_history_{version} (\n{listed}\n)\n"
        "PARTITIONED BY (benchmark string)\n"
        "STORED AS PARQUET\n"
        f"LOCATION 's3://BUCKET/PREFIX/history/{version}/';\n\n"
        f"MSCK REPAIR TABLE nodesweep_history_{version};"
        "  -- again after the first sweep of a new benchmark"
    )


def main() -> None:
    """Print both: `python -m docs.site.history_tables`."""
    print(history_tables(COLUMNS))


if __name__ == "__main__":
    main()
