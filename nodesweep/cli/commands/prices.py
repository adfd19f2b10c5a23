"""`nodesweep prices refresh`: update the table of on-demand training prices."""

from __future__ import annotations

from pathlib import Path

import click

from nodesweep.cli.guard import BAD_INPUT, fail, guarded
from nodesweep.cli.output import print_notice, print_text


@click.group("prices", short_help="Update the table of prices.")
def prices_group() -> None:
    """Update the table of on-demand training prices that is used to compute costs."""


@prices_group.command("refresh", short_help="Read on-demand prices from the AWS Price List.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="REGION",
    help="Refresh only this region; repeatable. Default: all regions.",
)
@click.option(
    "--from",
    "origin",
    metavar="URL|FILE",
    help="Read from another server, or from a downloaded price list file. Default: AWS.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Table to update. Default: your user's table, which all commands read.",
)
@guarded
def refresh(regions: tuple[str, ...], origin: str | None, output: Path | None) -> None:
    """Read on-demand training prices from the AWS Price List.

    Types listed with more than one rate are skipped. Credentials are not needed. Each
    region is written once it has been read and checked.
    """
    from datetime import UTC, datetime

    from nodesweep.configs.atomic import SHARED, folder_problem, write_atomic
    from nodesweep.configs.price_list import PriceTable, read_table, table_bytes, table_file
    from nodesweep.tasks.report.price_list import PRICE_LIST_URL, read_price_list

    path = output or table_file()
    if problem := folder_problem(path.parent, "--output"):
        fail(problem, BAD_INPUT)  # report this before minutes of downloads
    known, today, found = read_table(path), datetime.now(UTC).date(), PriceTable()
    for new in read_price_list(origin or PRICE_LIST_URL, regions, known, today, print_notice):
        found = found.merged(new)
        # Another process may have added other regions since the last write.
        write_atomic(path, table_bytes(read_table(path).merged(found)), SHARED)
        for region, prices in new.regions.items():
            count = len(prices.usd_per_hour)
            print_text(f"{region}: {count} instance types, published on {prices.published}")
    print_text(f"wrote {path}")
