"""The dataset section of a config: the checks of each format, and programs without data."""

from __future__ import annotations

import pytest
import yaml

from nodesweep.configs.load import ConfigError, load_config, parse_config
from nodesweep.scaling.names import config_digest

FILES = {"name": "pictures", "source": "images", "format": "files"}


@pytest.mark.parametrize("text", ["dataset: none", "dataset: null", "dataset:"])
def test_a_program_may_have_no_dataset(raw_config, tmp_path, text):
    del raw_config["dataset"]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(raw_config) + text + "\n")
    config = load_config(path)
    assert config.dataset is None and config_digest(config)


def test_a_forgotten_dataset_is_asked_for(raw_config):
    del raw_config["dataset"]
    with pytest.raises(ConfigError, match="dataset: "):
        parse_config(raw_config, origin="test")


@pytest.mark.parametrize(
    "dataset",
    [
        {**FILES, "format": "csv"},
        {**FILES, "min_rows": 3, "unique_columns": ["id"]},
        {**FILES, "format": "parquet", "channel": None, "expectations": [{"type": "e"}]},
        {**FILES, "format": "images"},
        "tables",
    ],
)
def test_checks_that_do_not_fit_the_format_are_refused(raw_config, dataset, snapshot):
    raw_config["dataset"] = dataset
    with pytest.raises(ConfigError) as refused:
        parse_config(raw_config, origin="test")
    assert str(refused.value) == snapshot
