"""sweep.variants of a config: the config of each variant, and refused variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from nodesweep.configs.load import ConfigError, parse_config
from nodesweep.configs.models import BenchmarkConfig
from nodesweep.configs.section import WITH_SECRETS
from nodesweep.scaling import names
from nodesweep.scaling.arms import arms_of, main_arm
from nodesweep.scaling.secrets import hide_in_config, secrets_of

Configs = Callable[..., BenchmarkConfig]
BATCH = {"policy": "fixed_global", "size": 64}
LARGE = {"name": "large", "set": {"training.batch.size": 128}}
MPI = {"name": "mpi", "set": {"training.distribution": {"kind": "mpi"}}}


@pytest.fixture
def make(make_config: Configs) -> Configs:
    """Return a factory of configs with these variants."""

    def made(
        *variants: Any, training: dict[str, Any] | None = None, **sections: Any
    ) -> BenchmarkConfig:
        sweep = {"node_counts": [1, 2], "variants": list(variants), **sections.pop("sweep", {})}
        return make_config(sweep=sweep, training={"batch": BATCH, **(training or {})}, **sections)

    return made


def test_base_comes_first_and_a_variant_changes_only_what_it_sets(make: Configs) -> None:
    config = make(LARGE, MPI)
    assert [(arm.code, arm.name) for arm in arms_of(config)] == [
        ("a", "base"), ("b", "large"), ("c", "mpi")
    ]  # fmt: skip
    assert main_arm(config).name == "base" and config.sweep.most_jobs == 3 * 2
    base, large, mpi = (config.of_arm(name) for name in config.arm_names)
    assert large.training == base.training.model_copy(
        update={
            "batch": base.training.batch and base.training.batch.model_copy(update={"size": 128})
        }
    )
    assert mpi.training.distribution.kind == "mpi" and mpi.training.batch == base.training.batch
    assert {each.sweep.variants for each in (base, large, mpi)} == {None}
    assert (large.sweep.node_counts, large.platform) == (config.sweep.node_counts, config.platform)


def test_a_config_read_back_from_a_record_has_the_same_variants(make: Configs) -> None:
    config = make(LARGE, MPI, training={"distribution": {"kind": "torch_distributed"}})
    again = parse_config(config.model_dump(mode="json", context=WITH_SECRETS), origin="record")
    assert names.config_digest(again) == names.config_digest(config)
    assert [again.of_arm(name) for name in again.arm_names] == [
        config.of_arm(name) for name in config.arm_names
    ]


def test_variants_that_differ_in_a_masked_value_read_back_from_a_record(make: Configs) -> None:
    pinned = {"name": "pinned", "set": {"training.hyperparameters.pin-memory": "true"}}
    config = make(pinned, training={"hyperparameters": {"pin-memory": "false"}})
    again = parse_config(hide_in_config(config), origin="record")
    assert again.arm_names == config.arm_names


def test_a_config_without_variants_keeps_its_id_and_one_with_others_has_another(
    make: Configs, make_config: Configs
) -> None:
    without = make_config(sweep={"node_counts": [1, 2]}, training={"batch": BATCH})
    assert "variants" not in without.model_dump(mode="json")["sweep"]
    other = {**LARGE, "set": {"training.batch.size": 256}}
    digests = {names.config_digest(each) for each in (without, make(LARGE), make(other))}
    assert len(digests) == 3


def test_minimum_points_count_those_of_all_arms(make: Configs) -> None:
    assert make(LARGE, sweep={"min_points": 4}).of_arm("large").sweep.min_points is None


def test_secrets_of_a_variant_are_known_and_hidden(make: Configs) -> None:
    config = make({"name": "other", "set": {"training.hyperparameters.api_key": "hunter2hunter2"}})
    assert "hunter2hunter2" in secrets_of(config)
    assert "hunter2hunter2" not in str(hide_in_config(config))


SETS = "training.batch.size"
REFUSED = {
    "the same name": [LARGE, {**MPI, "name": "large"}],
    "nothing": [{"name": "large", "set": {}}],
    "the base config": [{"name": "same", "set": {SETS: 64}}],
    "each other": [LARGE, {"name": "same", "set": {"training.batch": {**BATCH, "size": 128}}}],
    "the dataset": [{"name": "data", "set": {"dataset.name": "other"}}],
    "the sweep": [{"name": "counts", "set": {"sweep.node_counts": [1]}}],
    "a whole section": [{"name": "all", "set": {"training": {}}}],
    "variables": [{"name": "token", "set": {"training.environment.HF_TOKEN": "x"}}],
    "the name of base": [{**LARGE, "name": "base"}],
    "a folder's name": [{**LARGE, "name": "logs"}],
    "an invalid name": [{**LARGE, "name": "../x"}],
    "a value": [LARGE, {"name": "none", "set": {SETS: 0}}],
    "a field": [{"name": "typo", "set": {"training.batch.siz": 3}}],
    "below a value": [{"name": "deep", "set": {f"{SETS}.x": 3}}],
    "too deep": [{"name": "deep", "set": {"training.hyperparameters." + ".".join("x" * 60): 3}}],
    "a section that others need": [{"name": "no-batch", "set": {"training.batch": None}}],
    "an unknown type": [{"name": "type", "set": {"training.instance_type": "ml.m5.xlage"}}],
    "a secret value": [{"name": "bad", "set": {"training.hyperparameters.key": ["hunter2"]}}],
    "a field of another launcher": [{"name": "big", "set": {"platform.partition": "big"}}],
    "no mapping": [{"name": "bad", "set": 5}],
    "no name": [{"set": {SETS: 3}}],
    "too many": [{"name": f"v{size}", "set": {SETS: size}} for size in range(1, 10)],
}


@pytest.mark.parametrize("variants", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_variant_is_refused(
    variants: list[Any], make: Configs, snapshot: SnapshotAssertion
) -> None:
    needs_batch = {"hyperparameters": {"batch": "{global_batch_size}"}}
    with pytest.raises(ConfigError) as refused:
        make(*variants, training=needs_batch)
    assert "hunter2" not in str(refused.value)
    assert str(refused.value) == snapshot


OTHERS: dict[str, dict[str, Any]] = {
    "sequential": {"sweep": {"design": "sequential", "repeats": 3}},
    "types, too": {"sweep": {"instance_types": ["ml.m5.xlarge", "ml.m5.2xlarge"]}},
    "sized runs": {"training": {"baseline_seconds": 60}},
    "value of an hour": {"report": {"recommendation": {"hour_value_usd": 5}}},
    "too many jobs": {"sweep": {"repeats": 50, "node_counts": list(range(1, 12))}},
}


@pytest.mark.parametrize("sections", OTHERS.values(), ids=OTHERS)
def test_what_does_not_go_with_variants_is_refused(
    sections: dict[str, Any], make: Configs, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(LARGE, **sections)
    assert str(refused.value) == snapshot
