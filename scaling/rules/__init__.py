"""What can be said of a sweep before anything is sent, beside its distribution (scaling/rules/distribution).

problems, hints = check_sweep(Sweep(config, instance, processes_per_node, per_replica_batch_sizes, node_order))
"""

from __future__ import annotations

from scaling.rules import features, learning, limits
from scaling.rules.sweep import Sweep

__all__ = ["HINTS", "RULES", "Sweep", "check_sweep"]

RULES = (
    features.spot_waits_as_long_as_it_runs,
    features.spot_has_no_warm_pool,
    features.file_systems_are_in_a_vpc,
    features.volume_key_has_a_volume,
    features.channels_have_one_name,
    features.shipped_program_reads_files,
    features.shipped_program_splits_no_model,
    limits.environment_fits,
    limits.metric_definitions_fit,
    limits.image_uri_fits,
    limits.entry_point_fits,
)
HINTS = (
    features.spot_resumes_from_checkpoints,
    features.volume_key_is_checked,
    features.retries_are_in_one_clock,
    features.warm_pool_is_reused,
    features.encryption_slows,
    features.own_program_reads_a_stream,
    learning.rule_goes_with_the_optimiser,
    learning.batch_normalisation_has_samples,
    learning.larger_instance_first,
)


def check_sweep(sweep: Sweep) -> tuple[list[str], list[str]]:
    """(problems, hints): what refuses the sweep, and what its plan should say. No order between the rules."""
    problems = [problem for rule in RULES for problem in rule(sweep)]
    return problems, [hint for rule in HINTS for hint in rule(sweep)]
