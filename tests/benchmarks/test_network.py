"""The network benchmark without nodes: the expected times, the exit code, and refused node
counts."""

from __future__ import annotations

import json

import pytest

from benchmarks import network
from benchmarks.network import Measured, expected_seconds, main


@pytest.mark.parametrize(
    ("transfer", "nodes", "seconds"),
    [("stream", 2, 2.0), ("stream", 8, 2.0), ("all-reduce", 2, 2.0), ("all-reduce", 8, 3.5)],
)
def test_the_time_on_the_line_is_its_bytes_with_headers(transfer, nodes, seconds):
    """25 MB at 100 Mbit/s; a ring all-reduce takes 2(N-1)/N of the bytes over each link."""
    assert expected_seconds(transfer, 25_000_000, nodes, 0.1) == pytest.approx(
        seconds * 1514 / 1448
    )


@pytest.mark.parametrize(("seconds", "code"), [(2.0, 1), (2.08, 0), (9.0, 0)])
def test_a_link_faster_than_its_rate_fails(monkeypatch, tmp_path, seconds, code):
    def measured(instance_type, options, folder):
        shared = (2, "stream", seconds, seconds)
        return [
            Measured(instance_type, "own", *shared, 2.09),
            Measured(instance_type, "loopback", 2, "stream", 0.01, 0.01, None),
        ]

    monkeypatch.setattr(network, "_of_type", measured)
    file = tmp_path / "result.json"
    options = ["--types", "ml.local.small100m", "--counts", "2", "--output", str(file)]
    assert main(options) == code
    stored = json.loads(file.read_text())
    assert stored["megabytes"] == 25 and len(stored["cells"]) == 2


@pytest.mark.parametrize("counts", [["1"], ["2000"]])
def test_counts_that_no_transfer_can_have_are_refused(counts, capsys):
    with pytest.raises(SystemExit):
        main(["--counts", *counts])
    assert "--counts" in capsys.readouterr().err
