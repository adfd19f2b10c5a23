"""Reports whose step budget is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodesweep.scaling.analysis.price import Price
from nodesweep.scaling.outcome.outcome import Clocks
from tests.nodesweep.scaling.analysis.test_step_budget import rank, run

PRICE = Price(instance_type="ml.m5.xlarge", usd_per_hour=3.6, region="us-east-1")
NOISE = (0.99, 1.0, 1.01)
TIMES = {1: (100.0, 0.0), 2: (50.0, 2.0), 4: (25.0, 1.5)}


@pytest.fixture
def make_budget_outcomes(make_outcome):
    """Return a factory of runs: compute and communication by nodes, 320 samples in all.

    By default the batch per process is 16 and a step's communication that of a ring: 0.4 s per
    2(N - 1)/N.
    """

    def make(times=TIMES, noise=NOISE, batch=None, wait=0.0, processes=1, **changes):
        made = []
        for nodes, (compute, exchange) in times.items():
            size = batch or 16 * nodes * processes
            for repeat, factor in enumerate(noise, start=1):
                each = compute * factor
                ranks = [
                    rank(
                        number,
                        node=f"algo-{number // processes + 1}",
                        forward=each / 3,
                        backward=each * 2 / 3,
                        communication=exchange * factor + (wait if number else 0.0),
                        start=1.0,
                    )
                    for number in range(nodes * processes)
                ]
                seconds = each + exchange * factor + 1.0
                outcome = run(make_outcome, nodes, seconds, ranks, repeat)
                outcome.metrics["samples"] = {"processed": 320}
                outcome.metrics["final_metric"] = 0.5
                made.append(
                    replace(
                        outcome,
                        clocks=Clocks(
                            train_seconds=seconds,
                            billable_seconds=seconds + 30,
                            submit_to_end_seconds=seconds + 60,
                        ),
                        world_size=nodes * processes,
                        global_batch_size=size,
                        per_replica_batch_size=16,
                        **changes,
                    )
                )
        return made

    return make


@pytest.fixture
def budget_report(make_budget_outcomes, make_report):
    """Return a factory of reports of such runs."""

    def make(*times, config=None, sweep_id="bench-20260102030405-0a1b2c3d", price=PRICE, **given):
        outcomes = make_budget_outcomes(*times, **given)
        return make_report(outcomes, price=price, config=config, sweep_id=sweep_id)

    return make
