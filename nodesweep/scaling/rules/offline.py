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
            "anything that the chosen kind does not support "
            "([distribution.md](distribution.md) lists it by kind): an instance type on which "
            "the kind's library does not run (SMDDP, SMP, Neuron), or Trainium with a kind "
            "that does not support it; more processes per node than accelerators, or a "
            "launcher that starts one process per accelerator if the catalogue lacks their "
            "number; an AWS container that lacks the kind's library or has an unsupported "
            "version; an entry point other than a `.py` file under torchrun; in mpirun's "
            "options, quotes, or an MCA parameter that is given twice or that the toolkit sets "
            "itself; device RDMA on an adapter that does not support it; the hyperparameter "
            "`mp_parameters`; partitions, or tensor, sharding, context or expert degrees, by "
            "which the number of processes is not divisible; micro-batches that do not divide "
            "the batch evenly; several replicas without `ddp`"
        ),
        remedy=("use another instance type, kind, container or number, as the message says"),
        says=(
            "an EFA that nothing enables; mpi4py that the image must contain; "
            "`parameter_server`, which starts no server; SMDDP on p3; an image built on a "
            "container that lacks the kind's library; emulated nodes with a kind whose library "
            "exists only on AWS"
        ),
    ),
    Rule(
        "GPU and CUDA",
        (containers.gpu_supports_the_cuda, containers.cuda_is_known),
        refuses=(
            "an AWS container whose CUDA version does not support the GPU: CUDA 12.8 or later "
            "on V100 (p3, p3dn), 12 or later on K80 (p2); CUDA before 11.0 on A100, A10G, L4 "
            "and L40S, before 11.8 on H100 and H200, or before 12.8 on Blackwell (p6, g7, g7e)"
        ),
        remedy="use the container that the message names, or another instance type",
        says=(
            "an image built on such a container; a container whose name does not show its CUDA "
            "version; an instance type whose GPUs are unknown"
        ),
    ),
    Rule(
        "processor and container",
        (containers.processor_matches_the_container,),
        refuses="an x86 container on Arm processors (p6e-gb200)",
        remedy="use an image for arm64, or another instance type",
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
            "PyTorch before 2.1, or with `strategy: fsdp` before 2.6 (on CPUs, 2.7); `backend: "
            "smddp`, `backend: xla` or `strategy: smp` in a container that lacks the library; "
            "`compress` without DDP, or `compress: bf16` without GPUs"
        ),
        remedy=(
            "use a newer container, one with the library, another strategy, or your training script"
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
            "a container made for a different device, with which the instance's accelerators stay "
            "idle; a container version that contains SMDDP only in later patches; EFA settings "
            "on an instance without an adapter (NCCL falls back to TCP), including the "
            "settings that the toolkit makes under `smddp` and `pytorchddp`; facts that the "
            "catalogue lacks, with the checks that are skipped as a result"
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
        remedy=(
            "set `max_wait_seconds` to at least `max_runtime_seconds`; omit spot or "
            "`keep_alive_seconds`"
        ),
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
            "a training plan or an MLflow resource in a different region or account than the jobs; "
            "a plan together with spot"
        ),
        remedy=(
            "use a resource in `platform.region` and in the role's account; omit spot or the plan"
        ),
        says=(
            "costs under a plan, which are on-demand prices of the same node-hours and not the "
            "upfront fee; the role's access to MLflow, which is not checked"
        ),
    ),
    Rule(
        "fallbacks",
        (features.fallbacks_have_as_many_accelerators, features.fallbacks_are_launched_alike),
        refuses=(
            "a type in `training.instance_fallbacks` that has a different number of accelerators "
            "than `training.instance_type`, or needs different launch settings, such as EFA "
            "settings for mpirun. All other rules apply to every type"
        ),
        remedy=(
            "use types with the same number of accelerators and the same kind of EFA; to "
            "compare types, use `sweep.instance_types`"
        ),
    ),
    Rule(
        "placement",
        (features.placement_is_on_an_ultra_server, features.jobs_may_share_an_ultra_server),
        refuses=(
            "`training.placement` on a type other than `ml.p6e-gb200.*`; with "
            "`ultra_server_id`, more than the 18 nodes of one UltraServer"
        ),
        remedy="omit `training.placement`; use fewer nodes",
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
        remedy="omit the key, since the disks are encrypted in hardware",
        says="a key on a type that may or may not train on its own disks",
    ),
    Rule(
        "channels",
        (features.channels_have_one_name, features.own_program_reads_a_stream),
        refuses="two channels whose names yield the same `SM_CHANNEL_` variable",
        remedy="rename one of the channels",
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
            "a dataset that is missing or not a table, or Pipe mode; the hyperparameter "
            "`epochs` or `max-steps` together with `training.baseline_seconds` or "
            "`training.steps`; `smp_v1`, or a tensor, context or expert degree above 1"
        ),
        remedy=(
            "use a dataset of format parquet or csv and `input_mode: FastFile`; set the amount "
            "of work in one place only; or bring your training script with "
            "`training.source_dir`"
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
            "an invalid variable name, or a name or value of more than 512 characters; "
            "variables that nodesweep sets itself: `NODESWEEP_PROBE_PRECISION`, "
            "`NODESWEEP_PROBE_MAX_STEPS` and `NODESWEEP_PROBE_MAX_SHARE`, which would end "
            "every job early, `NODESWEEP_RUN_SECONDS` and `NODESWEEP_RUN_STEPS`, which would "
            "set every job's amount of work, `NODESWEEP_MEASURE`, "
            "`NODESWEEP_TIME_ALL_REDUCES`, `NODESWEEP_ALL_REDUCES` and `NODESWEEP_TIME_PASSES`"
        ),
        remedy=(
            "put a long value in a file next to the program; instead of these variables, set "
            "`sweep.design: probe` or `predict`, `training.baseline_seconds`, `training.steps` or "
            "`training.measure`"
        ),
    ),
    Rule(
        "metric definitions",
        (limits.metric_definitions_fit,),
        refuses=(
            "an empty name, a name of more than 255 characters, or a regular expression of "
            "more than 500"
        ),
        remedy="name the metric, or shorten its name or expression",
    ),
    Rule(
        "image URI",
        (limits.image_uri_fits,),
        refuses=(
            "an `image.repository` with which the image's URI, including registry and digest, "
            "exceeds 255 characters"
        ),
        remedy="choose a shorter name; the message gives the limit",
    ),
    Rule(
        "entry point",
        (
            limits.entry_point_fits,
            program.entry_point_name_is_valid,
            program.entry_point_is_sent,
        ),
        refuses=(
            "a `training.entry_point` that is not a file inside `training.source_dir`, or that "
            "is in a hidden folder, a cache, the reports or the dataset, which are not "
            "uploaded; a name of more than 512 characters, or with characters other than ASCII "
            "letters, digits and `. _ + -`, since the toolkit cannot start it"
        ),
        remedy="choose a file in `training.source_dir` that is uploaded; rename the file",
    ),
    Rule(
        "setup.py",
        (program.package_is_started, program.package_is_installed),
        refuses=(
            "a `setup.py` at the top level of `training.source_dir`, which makes the toolkit "
            "treat the code as a package: it cannot start a package with torchrun, nor one "
            "whose entry point is in a subfolder"
        ),
        remedy=(
            "move `setup.py` elsewhere, or choose a folder without one; list packages in "
            "`requirements.txt`"
        ),
        says=(
            "a `setup.py` under other launchers, which makes each job begin with `pip install .`"
        ),
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
            "retries inside one job; a warm pool that no job reuses; your training script in a "
            "probe sweep or with an amount of work, since it has to end itself, and a script that "
            "does not report its steps in a probe sweep; a step limit among the hyperparameters; "
            "encryption between nodes"
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
            "a learning rate rule that does not suit the optimizer; a global batch that grows "
            "without such a rule, or beyond the sizes known to keep accuracy; too few samples "
            "per replica for batch normalization; a larger instance that could replace "
            "several; a local dataset below 20 GB, for which data parallelism might not pay off"
        ),
    ),
    Rule(
        "batch",
        (plan.batch_divides,),
        refuses="a `fixed_global` batch size that is not divisible by world size × accumulation",
        remedy="use one of the two sizes that the message names, or other node counts",
    ),
    Rule(
        "program",
        (plan.numbers_reach_the_program,),
        refuses=(
            "a batch size, accumulation or learning rate that the report would print but that "
            "no hyperparameter passes to the program"
        ),
        remedy=(
            "pass placeholders such as `{per_replica_batch_size}` in the hyperparameters that "
            "your program reads"
        ),
    ),
    Rule(
        "hyperparameters",
        (plan.hyperparameters_fit,),
        refuses=(
            "more than 100 hyperparameters (including the toolkit's own), a name of more than "
            "256 characters, or a value whose JSON has more than 2,500"
        ),
        remedy="put long values in a file next to the program",
    ),
    Rule(
        "budget",
        (plan.budget_holds_the_bound,),
        refuses=(
            "a maximum cost above `sweep.budget_usd`, or no known price. The maximum cost is "
            "the sum over all jobs of nodes × attempts × (`max_runtime_seconds` + 120 s to "
            "stop + `keep_alive_seconds`) × price. A run refused for this reason emits the "
            "event `nodesweep.budget`"
        ),
        remedy=(
            "raise the budget, or lower the limits, attempts, repeats or node counts; if there "
            "is no price, run `nodesweep prices refresh`, or add one to "
            "`configs/instances.yaml`"
        ),
    ),
    Rule(
        "mpi4py",
        (requirements.mpi4py_is_installed,),
        refuses=(
            "a kind that mpirun starts, if neither a `requirements*.txt` nor the Dockerfile "
            "lists mpi4py and the base image is not in ECR"
        ),
        remedy="add mpi4py to `requirements.txt`",
    ),
    Rule(
        "code in the image",
        (requirements.own_code_is_unpacked,),
        refuses=(
            "`training.source_dir` together with a Dockerfile that copies files to "
            "`/opt/ml/code`, since the toolkit then does not unpack your code"
        ),
        remedy=(
            "omit `source_dir` or the copied files, or copy the program elsewhere, as "
            "`infra/image/Dockerfile` does"
        ),
    ),
    Rule(
        "files and container",
        (requirements.files_are_there, requirements.files_left_out),
        refuses=(
            "a file that the code's `requirements.txt` includes (`-r`, `-c`) but that is not "
            "in `training.source_dir`; an `image.framework` for which AWS has no container; in "
            "`training.source_dir`, `image.context` or a local `dataset.source`, an unreadable "
            "folder, or a link that is broken or points outside the folder; in the dataset, "
            "files that look like tables but are neither validated nor read; a "
            "`report.directory` that is a file, a broken link or not writable (not checked by "
            "`plan`, since the run might be started elsewhere)"
        ),
        remedy=(
            "correct the path; use another version, or set `image.base_image` to a container; "
            "replace the link with a copy; rename or move the file; create the report folder, "
            "or choose another with `--output`"
        ),
        says=(
            "files that are skipped: in the code and the image context, files that might "
            "contain secrets (`.env`, `.netrc`, `.git`, `id_rsa`, `*.pem` and `*.key` with a "
            "private key, `service-account*.json`); in the dataset, hidden files and files "
            "that are not tables"
        ),
    ),
    Rule(
        "instance types",
        (plan.types_are_of_a_kind,),
        refuses="`sweep.instance_types` that mix emulated nodes with real instances",
        remedy="measure emulated nodes and real instances in separate sweeps",
    ),
    Rule(
        "build arguments",
        (limits.build_arguments_are_no_secrets,),
        says=(
            "a build argument that looks like a secret, by its name or by a password in a URL, "
            "since the image's history shows it"
        ),
    ),
    Rule(
        "variables",
        (limits.variables_are_set,),
        refuses=(
            "a variable that `training.environment` refers to as `${NAME}`, if it is not set "
            "where the run takes place or its value is longer than 512 characters (not checked "
            "by `plan`, since the run might be started elsewhere)"
        ),
        remedy="set the variable for the command or the worker; have the job fetch a longer value",
    ),
    Rule(
        "request",
        (plan.requests_are_well_formed,),
        refuses=(
            "a member of the CreateTrainingJob request that botocore's validator rejects, "
            "because it is unknown, missing, of a wrong type or below its minimum. The "
            "validator ignores the model's maximums, patterns and enumerations. The request is "
            "checked only if no other rule finds a problem"
        ),
        remedy=(
            "correct the config field that sets the member named in the message; if there is "
            "none, report a bug"
        ),
    ),
)


def check(facts: Facts) -> Findings:
    """Return the findings of all rules.

    With several arms, the rules run for each arm, and a finding that not all arms share names its
    arm.
    """
    if not facts.arms:
        return _check_one(facts)
    found = merge_arms({name: _check_one(arm) for name, arm in facts.arms.items()})
    of_sweep = plan.budget_holds_the_bound, plan.requests_are_well_formed, plan.types_are_of_a_kind
    return combine([found, *(judge(facts) for judge in of_sweep)])


def _check_one(facts: Facts) -> Findings:
    return combine(judge(facts) for rule in OFFLINE_RULES for judge in rule.judges)
