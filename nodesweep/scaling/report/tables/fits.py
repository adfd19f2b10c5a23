"""The table of fitted laws, and texts about the laws and the extrapolation."""

from __future__ import annotations

from nodesweep.scaling.fits.models import LawFit, Parameter
from nodesweep.scaling.formats import format_interval, format_seconds, format_value, nodes_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Table, titled
from nodesweep.scaling.report.tables.cells import time_unit

_MEANINGS = {
    "law": "its equation is below",
    "parameter": "its symbol",
    "value": "least-squares estimate",
    "95% interval": "or why it has none",
    "meaning": "meaning",
}


def fits_table(report: ScalingReport) -> Table | None:
    """Return a table of the parameters of all fitted laws; None if no law was fitted."""
    from pandas import DataFrame

    if not report.fits.laws:
        return None
    cells = DataFrame(
        {
            "law": law.law,
            "parameter": parameter.name,
            "value": _parameter_value(parameter, time_unit(report.train_clock)),
            "95% interval": _parameter_interval(parameter),
            "meaning": parameter.meaning,
        }
        for law in report.fits.laws
        for parameter in law.parameters
    )
    fitted = "node-time N x T(N)"
    if report.train_clock == "throughput":
        fitted += ", where T is the time per sample, not of a whole run"
    return Table(
        titled("Fitted laws", report),
        cells,
        _MEANINGS,
        f"Fitted to {fitted}; the law that predicts left-out points best comes first.",
    )


def law_verdict(law: LawFit) -> str:
    """Return a law's leave-one-out error, whether it is identifiable, and its peak."""
    error = (
        "unknown" if law.leave_one_out_error is None else f"{law.leave_one_out_error * 100:.2g}%"
    )
    known = "identifiable" if law.identifiable.value else "not identifiable"
    parts = [f"leave-one-out error {error}", f"{known} ({law.identifiable.reason})"]
    if law.peak_nodes is not None:
        parts.append(f"fastest at about {format_value(law.peak_nodes, 3)} nodes")
    return "; ".join(parts)


def law_line(law: LawFit, unit: str = "") -> str:
    """Return a sentence about a law; `unit` is the suffix of its times, see time_unit()."""
    values = ", ".join(f"{each.name} = {_parameter_value(each, unit)}" for each in law.parameters)
    return f"{law.law}: {values}; {law_verdict(law)}."


def extrapolation_text(report: ScalingReport) -> str:
    """Return a sentence with the extrapolated time, or why an extrapolation is not supported."""
    beyond = report.fits.extrapolation
    to = "" if beyond.nodes is None else f" to {nodes_text(beyond.nodes)}"
    if not beyond.supported.value:
        return f"Extrapolation{to}: not supported: {beyond.supported.reason}."
    seconds = f"{format_seconds(beyond.train_seconds)}{time_unit(report.train_clock)}"
    interval = format_interval(beyond.interval, format_seconds)
    value = (
        f"T = {seconds}; 95% interval if one of these laws holds: {interval} "
        f"({beyond.supported.reason})"
    )
    return f"Extrapolation{to}: {value}. {beyond.assumes}"


def _parameter_value(parameter: Parameter, time_unit: str) -> str:
    if parameter.unit != "s":
        return format_value(parameter.value, 3)
    return f"{format_seconds(parameter.value)}{time_unit}"


def _parameter_interval(parameter: Parameter) -> str:
    if parameter.interval is None:
        return f"none: {parameter.no_interval}"
    write = format_seconds if parameter.unit == "s" else lambda value: format_value(value, 3)
    return format_interval(parameter.interval, write)
