"""The table of fitted laws, and what is said beyond the measured node counts."""

from __future__ import annotations

from nodesweep.scaling.fits.models import LawFit, Parameter
from nodesweep.scaling.formats import format_interval, format_seconds, format_value, nodes_text
from nodesweep.scaling.report.model import ScalingReport
from nodesweep.scaling.report.table import Column, Group, TextTable, make_table, titled
from nodesweep.scaling.report.tables.cells import time_unit


def fits_table(report: ScalingReport) -> TextTable | None:
    """The parameters of every fitted law, one group of rows per law; None where none was fitted."""
    if not report.fits.laws:
        return None
    columns: list[Column[Parameter]] = [
        Column("parameter", "its symbol", lambda parameter: parameter.name, is_text=True),
        Column(
            "value",
            "least-squares estimate",
            lambda parameter: _parameter_value(parameter, time_unit(report)),
        ),
        Column("95 % interval", "or why there is none", _parameter_interval, is_text=True),
        Column("meaning", "what it stands for", lambda parameter: parameter.meaning, is_text=True),
    ]
    groups = [
        Group(law.parameters, f"{law.law}: {law.equation}", law_verdict(law))
        for law in report.fits.laws
    ]
    fitted = "node-time N x T(N)"
    if report.train_clock == "throughput":
        fitted += ", where T is the time per sample, not of a whole run"
    caption = f"Fitted to {fitted}; the law that predicts left-out points best comes first."
    return make_table(titled("Fitted laws", report), columns, groups, caption)


def law_verdict(law: LawFit) -> str:
    """Leave-one-out error, identifiable or not, and the peak."""
    error = (
        "unknown" if law.leave_one_out_error is None else f"{law.leave_one_out_error * 100:.2g} %"
    )
    known = "identifiable" if law.identifiable.value else "not identifiable"
    parts = [f"leave-one-out error {error}", f"{known} ({law.identifiable.reason})"]
    if law.peak_nodes is not None:
        parts.append(f"fastest at about {format_value(law.peak_nodes, 3)} nodes")
    return "; ".join(parts)


def law_line(law: LawFit, unit: str = "") -> str:
    """One law in one sentence; `unit` follows every time: see time_unit()."""
    values = ", ".join(f"{each.name} = {_parameter_value(each, unit)}" for each in law.parameters)
    return f"{law.law}: {values}; {law_verdict(law)}."


def extrapolation_text(report: ScalingReport) -> str:
    """What is said of twice the largest node count: a time with its interval and what it takes for
    granted, or that none is supported, and why.
    """
    beyond = report.fits.extrapolation
    to = "" if beyond.nodes is None else f" to {nodes_text(beyond.nodes)}"
    if not beyond.supported.value:
        return f"Extrapolation{to}: not supported: {beyond.supported.reason}."
    seconds = f"{format_seconds(beyond.train_seconds)}{time_unit(report)}"
    interval = format_interval(beyond.interval, format_seconds)
    said = f"T = {seconds}, 95 % interval {interval} ({beyond.supported.reason})"
    return f"Extrapolation{to}: {said}. {beyond.assumes}"


def _parameter_value(parameter: Parameter, time_unit: str) -> str:
    if parameter.unit != "s":
        return format_value(parameter.value, 3)
    return f"{format_seconds(parameter.value)}{time_unit}"


def _parameter_interval(parameter: Parameter) -> str:
    if parameter.interval is None:
        return f"none: {parameter.no_interval}"
    write = format_seconds if parameter.unit == "s" else lambda value: format_value(value, 3)
    return format_interval(parameter.interval, write)
