"""The rules with several instance types: each type is judged, and is named where it matters."""

from __future__ import annotations

from nodesweep.scaling.rules.offline import check
from nodesweep.scaling.rules.rule import Findings, merge_arms
from nodesweep.tasks.preflight.facts import read_facts

LARGE, SMALL = "ml.g5.12xlarge", "ml.g5.xlarge"
PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/march"


def types_facts(make_config, types, training=None, **sweep):
    given = {"instance_types": types, "node_counts": [1, 2], **sweep}
    config = make_config(sweep=given, training={"instance_type": types[0], **(training or {})})
    return read_facts(config)


def test_a_sentence_of_all_types_is_said_once_and_of_one_with_its_type():
    found = merge_arms({"a": Findings(("x", "y"), ("n",)), "b": Findings(("y",), hints=("h",))})
    assert found == Findings(("a: x", "y"), ("a: n",), ("b: h",))


def test_a_batch_that_does_not_divide_on_one_type_names_it(make_config):
    batch = {"batch": {"policy": "fixed_global", "size": 6},
             "distribution": {"kind": "torch_distributed"}}  # fmt: skip
    problems = check(types_facts(make_config, (LARGE, SMALL), batch)).problems
    dividing = [each for each in problems if "is not divisible" in each]
    assert dividing and all(each.startswith(f"{LARGE}: training.batch.size") for each in dividing)


def test_the_budget_is_one_for_all_types(make_config, snapshot):
    facts = types_facts(make_config, (LARGE, SMALL), budget_usd=0.01)
    over = [each for each in check(facts).problems if "sweep.budget_usd" in each]
    assert len(over) == 1
    assert over[0] == snapshot


def test_emulated_and_real_types_do_not_mix(make_config, snapshot):
    problems = check(types_facts(make_config, ("ml.local.small", SMALL))).problems
    assert problems == snapshot
    both = check(types_facts(make_config, ("ml.local.small", "ml.local.medium"))).problems
    assert not any("emulated" in problem for problem in both)


def test_variants_on_a_type_share_its_warm_pools(make_config):
    def hints(variant, keep, repeats=1, **training):
        return [
            hint
            for hint in check(
                read_facts(
                    make_config(
                        sweep={"node_counts": [1, 2], "repeats": repeats, "variants": [variant]},
                        training={"instance_type": SMALL, "keep_alive_seconds": keep, **training},
                    )
                )
            ).hints
            if "training.keep_alive_seconds" in hint
        ]

    fp16 = {"name": "fp16", "set": {"training.hyperparameters.precision": "16"}}
    larger = {"name": "larger", "set": {"training.instance_type": LARGE}}
    (reused,) = hints(fp16, 60)
    assert "nothing is reused" not in reused and "1 job runs between" in reused
    assert hints(fp16, 21_600) == []
    (unused,) = hints(larger, 21_600)
    assert "nothing is reused" in unused
    late = hints(larger, 60, repeats=2)  # jobs on the other type come between
    assert late and all("expire unused" in each and "for longer" in each for each in late)
    never = hints(larger, 21_600, repeats=2, max_runtime_seconds=21_600)
    assert never and not any("for longer" in each for each in never), "SageMaker's maximum"


def test_nodes_at_once_are_of_a_type_and_of_all(make_config):
    facts = types_facts(make_config, (LARGE, SMALL), repeats=1, max_parallel_jobs=2)
    assert [arm.peak_nodes for arm in facts.each] == [3, 3]
    assert [arm.peak_nodes_together for arm in facts.each] == [4, 4]


def test_nodes_at_once_of_a_type_are_those_of_all_variants_on_it(make_config):
    def peaks(*variants):
        sweep = {"node_counts": [1, 2, 4], "repeats": 3, "max_parallel_jobs": 27}
        config = make_config(
            sweep={**sweep, "variants": variants}, training={"instance_type": SMALL}
        )
        return [arm.peak_nodes for arm in read_facts(config).each]

    fp16 = {"name": "fp16", "set": {"training.hyperparameters.precision": "16"}}
    bf16 = {"name": "bf16", "set": {"training.hyperparameters.precision": "bf16"}}
    larger = {"name": "larger", "set": {"training.instance_type": LARGE}}
    reserved = {"name": "reserved", "set": {"training.training_plan_arn": PLAN}}
    assert peaks(fp16, bf16) == [63, 63, 63]
    assert peaks(fp16, larger) == [42, 42, 21]
    assert peaks(fp16, reserved) == [42, 42, 21]
