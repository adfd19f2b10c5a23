"""The job of a point, independent of any backend."""

from __future__ import annotations

import pytest

from nodesweep.configs.catalogue import load_catalogue
from nodesweep.scaling.job import JobSpec, ResolvedInputs
from nodesweep.scaling.outcome.observed import SWITCH, TIME_ALL_REDUCES
from nodesweep.scaling.outcome.projection import ASKED_BY, MOST_SHARE, MOST_STEPS
from nodesweep.scaling.outcome.timed_passes import TIME_PASSES
from nodesweep.scaling.planning.plan import plan_sweep
from nodesweep.scaling.planning.specs import build_spec

INPUTS = ResolvedInputs("bench-20260102000000-01234567", "image@sha256:1", "s3://data")


def render(spec: JobSpec):
    """Render a request like a backend, with everything but the job's identity."""
    return {"nodes": spec.nodes, "type": spec.instance_type, "variables": dict(spec.variables)}


def spec_of(config, attempt=1, nodes=1):
    plan = plan_sweep(config, load_catalogue().get(config.training.instance_type))
    point = next(each for each in plan.points if each.nodes == nodes)
    return build_spec(config, point, INPUTS, render, attempt)


def test_attempts_differ_by_their_names_alone(make_config):
    first, second = (spec_of(make_config(), attempt) for attempt in (1, 2))
    assert first.digest == second.digest and first.name != second.name
    assert first.instance_type == make_config().training.instance_type
    assert first.variables == {}


def test_the_digest_is_that_of_the_request(make_config):
    plain, switched = make_config(), make_config(training={"measure": "off"})
    assert spec_of(switched).variables == {SWITCH: "off"}
    assert spec_of(plain).digest != spec_of(switched).digest


def test_a_probe_knows_when_to_end(make_config):
    config = make_config(
        sweep={"design": "probe", "probe": {"precision": 0.02, "max_steps": 500}},
        training={"hyperparameters": {}},
    )
    assert spec_of(config).variables == {ASKED_BY: "0.02", MOST_STEPS: "500"}


def test_a_probe_knows_the_share_of_its_steps(make_config):
    config = make_config(
        sweep={"design": "probe", "probe": {"max_share": 0.1}}, training={"hyperparameters": {}}
    )
    assert spec_of(config).variables[MOST_SHARE] == "0.1"


@pytest.mark.parametrize(
    ("design", "nodes", "expected"),
    [("predict", 2, {TIME_ALL_REDUCES: "1"}), ("predict", 1, {}), ("full", 2, {})],
    ids=["own program", "one node", "another design"],
)
def test_the_network_is_measured_for_predictions_of_own_programs(
    design, nodes, expected, make_config
):
    config = make_config(sweep={"design": design, "node_counts": [1, 2, 4, 8]})
    assert spec_of(config, nodes=nodes).variables == expected


def test_the_shipped_program_measures_the_network_itself(make_config):
    config = make_config(
        sweep={"design": "predict", "node_counts": [1, 2, 4, 8]},
        image={"context": "infra/image"},
        training={"hyperparameters": {}},
    )
    assert TIME_ALL_REDUCES not in spec_of(config, nodes=2).variables


SHIPPED = {
    "sweep": {"design": "predict", "node_counts": [1, 2, 3, 4, 8]},
    "image": {"context": "infra/image"},
    "training": {"hyperparameters": {}},
}


def test_one_node_times_the_batches_of_larger_counts_that_divide_the_whole(make_config):
    config = make_config(**SHIPPED)
    assert spec_of(config).variables[TIME_PASSES] == "64,32,16,8"
    assert TIME_PASSES not in spec_of(config, nodes=2).variables


def test_at_most_sixteen_smaller_batches_are_timed(make_config):
    counts = [*range(1, 25)]
    sweep = {**SHIPPED["sweep"], "node_counts": counts}
    batch = {"policy": "fixed_global", "size": 5354228880}  # divisible by 1 to 24
    config = make_config(**{**SHIPPED, "sweep": sweep})
    large = config.training.batch.model_copy(update=batch)
    training = config.training.model_copy(update={"batch": large})
    sizes = config.sweep.rules.batches_to_time(config.model_copy(update={"training": training}))
    assert sizes == (batch["size"], *(batch["size"] // nodes for nodes in range(9, 25)))


@pytest.mark.parametrize(
    "changes",
    [
        {"sweep": {"design": "full", "node_counts": [1, 2, 4]}},
        {"sweep": {"design": "predict", "node_counts": [2, 4, 8]}},
        {"sweep": {"design": "predict", "node_counts": [1, 3, 5]}},  # 64 is divisible by neither
        {"image": {"context": "image"}},
        {"training": {"batch": {"policy": "fixed_per_replica", "size": 64}}},
        {
            "training": {
                "batch": {"policy": "fixed_global", "size": 64, "accumulate_grad_batches": 2}
            }
        },
        {"training": {"distribution": {"kind": "torch_distributed", "processes_per_node": 2}}},
    ],
    ids=[
        *("another design", "no single node", "no divisor", "own image"),
        *("batch per replica", "accumulation", "two processes"),
    ],
)
def test_no_passes_are_timed_where_they_are_not_those_of_more_nodes(changes, make_config):
    merged = {
        name: {**SHIPPED.get(name, {}), **changes.get(name, {})} for name in {*SHIPPED, *changes}
    }
    config = make_config(**merged)
    nodes = config.sweep.node_counts[0]
    assert TIME_PASSES not in spec_of(config, nodes=nodes).variables
