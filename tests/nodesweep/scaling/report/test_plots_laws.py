"""The fitted law in the plot of the speedup, and its prediction."""

from __future__ import annotations

from nodesweep.scaling.analysis.intervals import Interval
from tests.nodesweep.scaling.report.test_plots import draw, saved, svg, texts

AMDAHL = {nodes: 100 * (0.05 + 0.95 / nodes) for nodes in (1, 2, 4, 8, 16, 32)}


def test_a_law_is_drawn_where_identifiable_and_dotted_where_supported(make_outcomes, make_report):
    report = make_report(make_outcomes(AMDAHL))
    supported = report.fits.extrapolation.supported.model_copy(update={"value": True})
    for value in (True, False):
        beyond = report.fits.extrapolation.model_copy(
            update={
                "supported": supported.model_copy(update={"value": value}),
                "train_seconds": 6.5 if value else None,
                "interval": Interval(low=6.2, high=6.8) if value else None,
                "nodes": 64,
            }
        )
        changed = report.model_copy(
            update={"fits": report.fits.model_copy(update={"extrapolation": beyond})}
        )
        drawn = svg(changed, "speedup")
        words = texts(drawn)
        assert f"{report.fits.laws[0].law} law" in words
        assert ("extrapolated if a law holds" in words) is value
        assert ("64" in words) is value
        assert (b'id="extrapolated-interval"' in drawn) is value


def test_the_drawn_law_is_the_one_that_predicts(make_outcomes, make_report, snapshot):
    """N T = 100 (1 + 0.02 (N - 1) + 0.001 N (N - 1)): the runs reject amdahl, not usl."""
    times = {n: 100 * (1 + 0.02 * (n - 1) + 0.001 * n * (n - 1)) / n for n in (1, 2, 3, 4, 6, 8)}
    report = make_report(make_outcomes({n: [t * 0.9995, t, t * 1.0005] for n, t in times.items()}))
    beyond = report.fits.extrapolation
    assert beyond.law == "usl" and beyond.interval is not None
    # As if amdahl left out points more rightly: it ranks first, but the runs reject it.
    by_name = {fit.law: fit for fit in report.fits.laws}
    amdahl = by_name["amdahl"].model_copy(update={"identifiable": by_name["usl"].identifiable})
    fits = report.fits.model_copy(update={"laws": (amdahl, by_name["usl"])})
    changed = report.model_copy(update={"fits": fits})
    drawing = draw(changed, "speedup")
    words = texts(saved(drawing))
    assert "usl law" in words and "amdahl law" not in words
    assert drawing.caption == snapshot


def test_a_prediction_slower_than_every_run_is_within_the_picture(make_outcomes, make_report):
    times = {n: 10 * (1 + 0.5 * (n - 1) + 0.3 * n * (n - 1)) / n for n in (1, 2, 3, 4, 6, 8)}
    report = make_report(make_outcomes({n: [t * 0.999, t, t * 1.001] for n, t in times.items()}))
    interval = report.fits.extrapolation.interval
    assert interval is not None and interval.low > 1.5 * max(times.values())
    plot = draw(report, "speedup")
    low, high = plot.axes.get_ylim()
    assert low < 10 / interval.high < 10 / interval.low < high


def test_no_identifiable_law_no_line(make_outcomes, make_report):
    words = texts(svg(make_report(make_outcomes({1: 40, 2: 21, 4: 12})), "speedup"))
    assert not [word for word in words if word.endswith(" law")]


def test_the_ring_law_is_drawn_over_its_steps(make_outcome, make_report):
    """N T = 100 + 8 (N - 1)/N: under a fixed per-replica batch ring fits it exactly."""
    times = {nodes: (100 + 8 * (nodes - 1) / nodes) / nodes for nodes in (1, 2, 4, 8, 16, 32)}
    report = make_report(
        [
            make_outcome(
                n, t, batch_policy="fixed_per_replica", metrics={"final_metric": {"value": 0.9}}
            )
            for n, t in times.items()
        ]
    )
    assert report.fits.laws[0].law == "ring"
    assert "ring law" in texts(svg(report, "speedup"))
