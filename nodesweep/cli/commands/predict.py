"""`nodesweep predict`: predict unmeasured node counts from a finished sweep."""

from __future__ import annotations

from pathlib import Path

import click

from nodesweep.cli.guard import BAD_INPUT, fail, guarded
from nodesweep.cli.inputs import config_of_sweep, read_config
from nodesweep.cli.output import print_rendered, print_text
from nodesweep.cli.sweep_ids import complete_sweep_or_file


@click.command(short_help="Predict times for node counts that were not measured.")
@click.argument("report", shell_complete=complete_sweep_or_file)
@click.option(
    "--nodes",
    "asked",
    type=int,
    multiple=True,
    metavar="N",
    help="Node count to predict; repeatable. Default: the next doublings up to 8.",
)
@click.option(
    "--batches",
    multiple=True,
    metavar="REPORT",
    help="Report whose one-node runs show the compute time of a different global batch size;"
    " repeatable.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Config of the sweeps, if they were not started from here.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Reports directory that contains the sweeps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON.")
@guarded
def predict(
    report: str,
    asked: tuple[int, ...],
    batches: tuple[str, ...],
    config: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Predict time, efficiency and cost at node counts that were not measured.

    REPORT is a sweep id, a report.json or its folder. It must have a step-time breakdown of at
    least two node counts.
    """
    from nodesweep.cli.commands.compare import find_report
    from nodesweep.scaling.report.predictions.inputs import NotPredictable
    from nodesweep.scaling.report.predictions.predict import predict as predict_from
    from nodesweep.scaling.trend.compare import ComparisonError

    directory = output or Path(read_config(config).report.directory if config else "reports")
    try:
        found, *others = (
            find_report(
                reference, directory, lambda sweep: config_of_sweep(sweep, config, output).platform
            )
            for reference in (report, *batches)
        )
        prediction = predict_from(found, asked or None, others)
    except (ComparisonError, NotPredictable) as error:
        fail(str(error), BAD_INPUT)
    if as_json:
        print_text(prediction.model_dump_json(indent=2))
    else:
        from nodesweep.scaling.report.predictions.render import render_prediction_terminal

        print_rendered(render_prediction_terminal(prediction))
