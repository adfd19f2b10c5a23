"""The whole exchange of gradients, from all-reduces that were timed before the training."""

from __future__ import annotations

import pytest

from nodesweep.scaling.analysis.exchange import Exchange, read_exchange

MEGA = 1 << 20
SIZES = [4096 * 4**power for power in range(7)]
LATENCY, PER_BYTE = 0.001, 1e-7


def metrics(buckets, timed, exchanges=10, rank=0):
    network = {"bucket_bytes": buckets, "all_reduce": timed, "exchanges": exchanges}
    return {"budget": [{"rank": 1}, {"rank": rank, "network": network}]}


def timed(sizes=SIZES):
    return [[size, LATENCY + PER_BYTE * (size - 4096)] for size in sizes]


@pytest.mark.parametrize("last", [MEGA // 2, 64 * MEGA])
def test_each_bucket_has_the_latency_and_the_transfer_of_its_size(last):
    found = read_exchange(metrics([MEGA, last], timed()))
    sent = MEGA + last - 2 * 4096
    assert (found.latency, found.transfer) == pytest.approx(
        (10 * 2 * LATENCY, 10 * PER_BYTE * sent)
    )
    took = 2 * LATENCY + PER_BYTE * sent
    assert found.last_share == pytest.approx((LATENCY + PER_BYTE * (last - 4096)) / took)


def test_a_bucket_below_the_smallest_size_has_its_latency():
    found = read_exchange(metrics([100, 100], timed(), exchanges=1))
    assert found == pytest.approx((2 * LATENCY, 0.0, 0.5))


def test_a_size_that_something_delayed_took_no_longer_than_the_next_one():
    delayed = [[4096, 0.5], *timed()[1:]]
    found = read_exchange(metrics([4096], delayed, exchanges=1))
    assert found.latency == timed()[1][1]


def test_a_factor_leaves_the_last_buckets_share():
    assert Exchange(2.0, 4.0, 0.25).times(0.5) == (1.0, 2.0, 0.25)


@pytest.mark.parametrize(
    "written",
    [
        None,
        {},
        {"budget": "none"},
        {"budget": [{"rank": 0}]},
        metrics([MEGA], timed(), exchanges=None),
        metrics([MEGA], timed(), exchanges=0),
        metrics([MEGA], timed(), rank=2),
        metrics([], timed()),
        metrics("many", timed()),
        metrics([MEGA, -1], timed()),
        metrics([MEGA, float("nan")], timed()),
        metrics([MEGA], timed()[:2]),
        metrics([MEGA], timed()[::-1]),
        metrics([MEGA], [*timed(), timed()[-1]]),
        metrics([MEGA], [*timed()[:3], [MEGA, None]]),
        metrics([MEGA], [*timed()[:3], [MEGA]]),
        metrics([MEGA], [*timed()[:3], MEGA]),
    ],
)
def test_what_is_missing_or_no_number_is_unknown(written):
    assert read_exchange(written) is None
