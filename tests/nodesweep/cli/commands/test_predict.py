"""`nodesweep predict` as a user runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from nodesweep.cli.main import main
from nodesweep.scaling.report.render import render_json
from tests.nodesweep.scaling.conftest import make_outcome, make_report  # noqa: F401
from tests.nodesweep.scaling.report.predictions.conftest import (  # noqa: F401
    budget_report,
    make_budget_outcomes,
)
from tests.plain import plain


@pytest.fixture
def folder(budget_report, tmp_path):  # noqa: F811
    (tmp_path / "report.json").write_text(render_json(budget_report()))
    return tmp_path


def predict(*arguments):
    return CliRunner().invoke(main, ["predict", *map(str, arguments)])


def test_a_table_with_its_reasons(folder, snapshot):
    found = predict(folder)
    assert found.exit_code == 0
    assert plain(found.output, folder=folder) == snapshot


def test_json(folder):
    found = json.loads(predict(folder, "--json", "--nodes", 6, "--nodes", 8).output)
    assert [count["nodes"] for count in found["counts"]] == [6, 8]
    assert found["counts"][1]["interval"]["level"] == 0.9
    assert found["measured_nodes"] == [1, 2, 4]


def test_refusals_are_bad_input(folder, tmp_path, monkeypatch, snapshot):
    monkeypatch.chdir(tmp_path)  # no sweeps in ./reports
    for arguments in ((folder, "--nodes", 99), (folder, "--batches", folder / "none")):
        found = predict(*arguments)
        assert found.exit_code == 2
        assert plain(found.output, folder=tmp_path) == snapshot
