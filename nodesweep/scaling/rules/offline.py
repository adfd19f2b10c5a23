"""Every rule that needs no account, in the order in which findings are reported.

tasks/preflight/facts.py collects the facts, and
`python -m nodesweep.launch.sagemaker.preflight.document` writes docs/preflight.md from this table.
To add a rule, write a function of Facts, decorate it with refuses or advises, and add its row.
"""

from __future__ import annotations

from nodesweep.scaling.rules import (
    distribution,
    features,
    learning,
    limits,
    plan,
    program,
    requirements,
)
from nodesweep.scaling.rules.distribution import containers, rules
from nodesweep.scaling.rules.distribution import program as shipped
from nodesweep.scaling.rules.rule import Facts, Findings, Rule, combine, merge_arms

OFFLINE_RULES: tuple[Rule[Facts], ...] = (
    Rule(
        "distribution",
        (distribution.kind_fits,),
        refuses=(
            "what the chosen kind does not support (see [distribution.md](distribution.md) for "
            "each kind): a library that the instance type lacks (SMDDP, SMP, NeuronCores), "
            "Trainium with another kind; more processes per node than accelerators, or a "
            "launcher that starts one per accelerator if the catalogue does not know how many "
            "there are; an AWS container without the kind's library or version; no `.py` file "
            "under torchrun; an MCA parameter given twice or set by the toolkit, quotes in "
            "mpirun's options, device RDMA on an adapter without it; the hyperparameter "
            "`mp_parameters`; partitions, tensor, sharding, context or expert "
            "degrees that do not divide the processes, micro-batches that do not divide the "
            "batch, several replicas without `ddp`"
        ),
        remedy=("another instance type, kind, container or number, as named in the message"),
        says=(
            "an EFA that nothing enables; mpi4py that must be in the image; `parameter_server`, "
            "which starts no server; SMDDP on p3; an image built on a container without the "
            "kind's library; a kind whose library exists only on AWS"
        ),
    ),
    Rule(
        "GPU and CUDA",
        (containers.gpu_supports_the_cuda, containers.cuda_is_known),
        refuses=(
            "an AWS container whose CUDA has no code for the GPU: V100 (p3, p3dn) with CUDA 12.8 or"
            " later, K80 (p2) with 12 or later, A100, A10G, L4 and L40S before 11.0, H100 and H200"
            " before 11.8, Blackwell (p6, g7, g7e) before 12.8"
        ),
        remedy="the container named in the message, or another instance type",
        says=(
            "the same if you build more on the container; a container whose name does not show "
            "its CUDA version; unknown GPUs"
        ),
    ),
    Rule(
        "processor and container",
        (containers.processor_matches_the_container,),
        refuses="an x86 container on Arm processors (p6e-gb200)",
        remedy="an image for arm64, or another instance type",
    ),
    Rule(
        "container and shipped program",
        (
            shipped.program_has_its_torch,
            shipped.program_has_its_libraries,
            shipped.program_uses_the_library,
            shipped.program_can_compress,
        ),
        refuses=(
            "PyTorch before 2.1; `strategy: fsdp` before 2.6, on CPUs before 2.7; `backend: "
            "smddp`, `backend: xla` or `strategy: smp` without a container that has the library; "
            "`compress` without DDP, `compress: bf16` without GPUs"
        ),
        remedy=(
            "a newer container or one with the library, another strategy, or your training script"
        ),
        says="a kind whose library the shipped program is not configured to use",
    ),
    Rule(
        "device and adapter",
        (
            containers.device_is_used,
            containers.smddp_may_be_missing,
            rules.adapter_is_there,
            rules.unknown_facts,
        ),
        says=(
            "a container for a device other than the instance's, whose accelerators then stay "
            "idle; a container that got SMDDP only in a later patch; settings for EFA without "
            "an adapter (NCCL falls back to TCP), including those that the toolkit makes under "
            "`smddp` and `pytorchddp`; facts missing from the catalogue, and what is therefore "
            "not checked"
        ),
    ),
    Rule(
        "spot",
        (
            features.spot_waits_as_long_as_it_runs,
            features.spot_has_no_warm_pool,
            features.spot_resumes_from_checkpoints,
        ),
        refuses=(
            "`training.spot.max_wait_seconds` less than `max_runtime_seconds`; spot with"
            " `keep_alive_seconds`"
        ),
        remedy="a wait at least as long as a job may run; leave out one of the two",
        says="spot without `training.checkpoints`",
    ),
    Rule(
        "training plan and MLflow",
        (
            features.resources_are_of_the_run,
            features.training_plan_is_not_spot,
            features.training_plan_is_paid_upfront,
            features.role_may_use_mlflow,
        ),
        refuses=(
            "a plan or an MLflow resource in a different region or account than the jobs; a plan"
            " together with spot"
        ),
        remedy="one of `platform.region` and the role's account; leave out spot or the plan",
        says=(
            "under a plan, costs are those of the same node-hours on demand, not the upfront fee;"
            " the role's access to MLflow is not checked"
        ),
    ),
    Rule(
        "fallbacks",
        (features.fallbacks_have_as_many_accelerators, features.fallbacks_are_launched_alike),
        refuses=(
            "a type of `training.instance_fallbacks` with a different number of accelerators than "
            "`training.instance_type`, or with different EFA settings for mpirun. All other rules "
            "apply to each type"
        ),
        remedy=(
            "types with equally many accelerators and the same EFA settings; "
            "`sweep.instance_types` to compare types"
        ),
    ),
    Rule(
        "placement",
        (features.placement_is_on_an_ultra_server, features.jobs_may_share_an_ultra_server),
        refuses=(
            "`training.placement` on a type other than `ml.p6e-gb200.*`; more nodes than the 18 of"
            " an UltraServer with `ultra_server_id`"
        ),
        remedy="leave it out; fewer nodes",
        says="jobs that share an UltraServer",
    ),
    Rule(
        "file systems",
        (features.file_systems_are_in_a_vpc,),
        refuses="a channel of type EFS or FSxLustre without `training.vpc`",
        remedy=(
            "set `training.vpc` to the file system's subnet and a security group"
            " that lets the nodes reach it"
        ),
    ),
    Rule(
        "volume key",
        (features.volume_key_has_a_volume, features.volume_key_is_checked),
        refuses="`training.volume_kms_key_id` on an instance that trains on its own NVMe disks",
        remedy="leave it out: the disks are encrypted in hardware",
        says="the same if it is unknown whether the type has such disks",
    ),
    Rule(
        "channels",
        (features.channels_have_one_name, features.own_program_reads_a_stream),
        refuses="two channels whose names become one `SM_CHANNEL_` variable",
        remedy="rename one",
        says="Pipe mode with your training script",
    ),
    Rule(
        "shipped program",
        (
            features.shipped_program_reads_files,
            features.shipped_program_has_one_amount,
            features.shipped_program_splits_no_model,
        ),
        refuses=(
            "no table to train on, or Pipe mode; `epochs` or `max-steps` together with "
            "`training.baseline_seconds` or `training.steps`; `smp_v1`, or a tensor, context or "
            "expert degree above 1"
        ),
        remedy=(
            "a dataset of format parquet or csv, `input_mode: FastFile`; one of the two "
            "amounts; or your training script with `training.source_dir`"
        ),
    ),
    Rule(
        "environment",
        (
            limits.environment_fits,
            limits.probes_are_asked_by_the_sweep,
            limits.amounts_are_asked_by_the_sweep,
            limits.measurement_is_set_by_the_config,
        ),
        refuses=(
            "an invalid name, or a name or value of more than 512 characters; "
            "`NODESWEEP_PROBE_PRECISION`, `NODESWEEP_PROBE_MAX_STEPS` or "
            "`NODESWEEP_PROBE_MAX_SHARE`, which would end every job early; "
            "`NODESWEEP_RUN_SECONDS` or `NODESWEEP_RUN_STEPS`, which set the amount of work of "
            "every job; `NODESWEEP_MEASURE`"
        ),
        remedy=(
            "put a long value in a file next to the program; set `sweep.design: probe`, "
            "`training.baseline_seconds`, `training.steps` or `training.measure`"
        ),
    ),
    Rule(
        "metric definitions",
        (limits.metric_definitions_fit,),
        refuses="an empty name, one of more than 255 characters, an expression of more than 500",
        remedy="shorten it",
    ),
    Rule(
        "image URI",
        (limits.image_uri_fits,),
        refuses=(
            "`image.repository` makes a URI of more than 255 characters with registry and digest"
        ),
        remedy="a shorter name; the message gives the limit",
    ),
    Rule(
        "entry point",
        (
            limits.entry_point_fits,
            program.entry_point_name_is_valid,
            program.entry_point_is_sent,
        ),
        refuses=(
            "`training.entry_point` is outside `training.source_dir`, is not a file, or "
            "is in a hidden folder, a cache, the reports or the dataset, which are not "
            "uploaded; its name has more than 512 characters, or characters other than ASCII "
            "letters, digits and `. _ + -`, which the toolkit cannot start"
        ),
        remedy="choose a file in it; rename the file",
    ),
    Rule(
        "setup.py",
        (program.package_is_started, program.package_is_installed),
        refuses=(
            "`setup.py` at the top level of `training.source_dir` under torchrun, with which "
            "the toolkit cannot start a package, or with an entry point in a subfolder"
        ),
        remedy="move it out, or choose a folder without one; list packages in `requirements.txt`",
        says="the same under other launchers: each job then begins with `pip install .`",
    ),
    Rule(
        "jobs of a sweep",
        (
            features.retries_are_in_one_clock,
            features.warm_pool_is_reused,
            features.own_program_ends_itself,
            features.step_limit_is_intended,
            features.encryption_slows,
        ),
        says=(
            "retries inside one job; a warm pool that nothing reuses; your training script in a "
            "probe sweep, or one that does not report its steps there; a step limit among "
            "the hyperparameters; encryption between nodes"
        ),
    ),
    Rule(
        "learning",
        (
            learning.rule_suits_the_optimizer,
            learning.batch_growth_is_known,
            learning.batch_normalization_has_samples,
            learning.larger_instance_first,
            learning.dataset_is_large_enough,
        ),
        says=(
            "a rate rule that does not suit the optimizer; a global batch that grows without a "
            "rate rule or beyond what is known; few samples per replica for batch "
            "normalization; a larger instance instead of more of them; a local dataset below 20 GB,"
            " for which data parallelism may not pay"
        ),
    ),
    Rule(
        "batch",
        (plan.batch_divides,),
        refuses="a `fixed_global` size that is not divisible by world size × accumulation",
        remedy="one of the two sizes named in the message, or other node counts",
    ),
    Rule(
        "program",
        (plan.numbers_reach_the_program,),
        refuses=(
            "no hyperparameter contains the batch size, the accumulation or the learning rate "
            "that the report prints"
        ),
        remedy=(
            "pass `{per_replica_batch_size}` and the like under the names that your program reads"
        ),
    ),
    Rule(
        "hyperparameters",
        (plan.hyperparameters_fit,),
        refuses=(
            "more than 100 of them including the toolkit's own, a name longer than 256 "
            "characters, a value longer than 2,500 as JSON"
        ),
        remedy="put long values in a file next to the program",
    ),
    Rule(
        "budget",
        (plan.budget_holds_the_bound,),
        refuses=(
            "nodes × attempts × (`max_runtime_seconds` + 120 s to stop + `keep_alive_seconds`) "
            "× price over all jobs is more than `sweep.budget_usd`, or there is no price; a run "
            "refused for this emits the event `nodesweep.budget`"
        ),
        remedy=(
            "raise it, or lower the limits, attempts, repeats or node counts; without a price, "
            "run `nodesweep prices refresh`, or add one to `configs/instances.yaml`"
        ),
    ),
    Rule(
        "mpi4py",
        (requirements.mpi4py_is_installed,),
        refuses=(
            "a kind that mpirun starts, but neither a `requirements*.txt` nor the Dockerfile "
            "lists mpi4py, and the base is not an image in ECR"
        ),
        remedy="add mpi4py to `requirements.txt`",
    ),
    Rule(
        "code in the image",
        (requirements.own_code_is_unpacked,),
        refuses=(
            "`training.source_dir` together with a Dockerfile that copies files to "
            "`/opt/ml/code`, where the toolkit would then not unpack it"
        ),
        remedy=(
            "leave out one of the two, or copy the program elsewhere, as "
            "`infra/image/Dockerfile` does"
        ),
    ),
    Rule(
        "files and container",
        (requirements.files_are_there, requirements.files_left_out),
        refuses=(
            "a file that the code's `requirements.txt` includes (`-r`, `-c`) is not in "
            "`training.source_dir`; AWS has no container for `image.framework`; in "
            "`training.source_dir`, `image.context` or a local `dataset.source`, a link that is "
            "broken or points outside the folder, or an unreadable folder; next to tables, files "
            "that look like tables but are neither validated nor read; `report.directory` is a "
            "file, a broken link or not writable (`plan` does not check that, since a run may "
            "be started elsewhere)"
        ),
        remedy=(
            "correct the path; use another version, or set `image.base_image` to the "
            "container; replace the link with a copy; rename or move the file; create "
            "the folder, or choose another with `--output`"
        ),
        says=(
            "files that are skipped: in code and context, those that may contain secrets "
            "(`.env`, `.netrc`, `.git`, `id_rsa`, `*.pem` and `*.key` with a private key, "
            "`service-account*.json`); next to tables, anything that is not a table, and hidden "
            "files"
        ),
    ),
    Rule(
        "instance types",
        (plan.types_are_of_a_kind,),
        refuses="`sweep.instance_types` mixes emulated nodes and real instances",
        remedy="measure them in separate sweeps",
    ),
    Rule(
        "build arguments",
        (limits.build_arguments_are_no_secrets,),
        says=(
            "a build argument that looks like a secret, by its name or a password in its URL, "
            "since it shows in the image's history"
        ),
    ),
    Rule(
        "variables",
        (limits.variables_are_set,),
        refuses=(
            "a variable that `training.environment` refers to as `${NAME}` is not set where the "
            "run takes place, or is longer than 512 characters; `plan` does not check that, "
            "since a run may be started elsewhere"
        ),
        remedy="set it for the command or the worker; have the job fetch a longer value",
    ),
    Rule(
        "request",
        (plan.requests_are_well_formed,),
        refuses=(
            "a member of the CreateTrainingJob request that is unknown, missing, of a wrong "
            "type or below its lower bound, according to botocore's shapes, which have no upper "
            "bounds, patterns or enumerations. It is checked only if nothing else is wrong"
        ),
        remedy="the message names the member; if no config field sets it, report a bug",
    ),
)


def check(facts: Facts) -> Findings:
    """Return the findings of all rules.

    With several arms the rules run for each, and findings that not all of them share name the arm.
    """
    if not facts.arms:
        return _check_one(facts)
    found = merge_arms({name: _check_one(arm) for name, arm in facts.arms.items()})
    of_sweep = plan.budget_holds_the_bound, plan.requests_are_well_formed, plan.types_are_of_a_kind
    return combine([found, *(judge(facts) for judge in of_sweep)])


def _check_one(facts: Facts) -> Findings:
    return combine(judge(facts) for rule in OFFLINE_RULES for judge in rule.judges)
