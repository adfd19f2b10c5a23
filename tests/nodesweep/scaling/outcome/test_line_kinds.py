"""The lines of a node's log that are shown while it runs, which include all lines of the
program."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodesweep.scaling.outcome.line_kinds import MAX_TEXTS_REMEMBERED, LineKinds, Step, step_of

CAPTURED = Path(__file__).parent / "captured_logs"
PREFIX = "2026-11-22 14:00:04,294 sagemaker-training-toolkit"
DUMP = [
    f"{PREFIX} INFO     Invoking user script",
    "",
    "Training Env:",
    "",
    "{",
    '    "additional_framework_parameters": {},',
    '    "current_instance_group_hosts": [',
    '        "algo-1"',
    "    ],",
    '    "hosts": [',
    '"algo-1",',
    "    ],",
    '    "is_smddpmprun_installed": null,',
    '    "num_cpus": 2,',
    "}",
    "",
    "Environment variables:",
    "",
    "SM_HOSTS=[...]",
    "SM_HP_WARMUP-EXCLUDE-SECONDS=0",
    "PYTHONPATH=/opt/ml/code:/usr/lib/python3.11",
    "",
    "Invoking script with the following command:",
    "",
    "/usr/bin/python3.11 train.py --epochs 4",
]


def kinds(lines: list[str], host: str = "algo-1", sorter: LineKinds | None = None) -> list[str]:
    sorter = sorter or LineKinds()
    return [sorter.sort(host, line) for line in lines]


def programs(lines: list[str]) -> list[str]:
    return [line for line, kind in zip(lines, kinds(lines), strict=True) if kind == "program"]


def test_the_toolkit_its_dump_and_the_command_are_not_the_programs() -> None:
    after = [
        f"{PREFIX} INFO     Exceptions not imported for SageMaker TF",
        "2026-11-23 05:23:29,086 sagemaker_pytorch_container.training INFO     Block",
        f"{PREFIX} INFO     Reporting training SUCCESS",
    ]
    assert set(kinds(DUMP + after)) == {"toolkit"}
    assert programs([*DUMP, "step=1; loss=2;", *after, "bye"]) == ["step=1; loss=2;", "bye"]


def test_a_program_without_a_toolkit_is_shown_whole() -> None:
    lines = [
        "SM_HP_EPOCHS=4",
        "PYTHONPATH=/mine",
        '{"loss": 1}',
        "{",
        '    "epoch": 1',
        "}",
        "Training Env:",
        "Invoking user script",
        "Invoking script with the following command:",
        "python train.py",
        "Collecting results",
        "Downloading data",
        "Installing collected ideas",
        "[platform] is Linux",
        "2026-11-22 14:00:04,294 sagemaker_feature_store INFO     my own logger",
        "2026-11-22 14:00:04,294 botocore.credentials INFO     Found credentials",
        "",
    ]
    assert programs(lines) == lines


def test_what_the_toolkit_says_of_a_failure_is_shown() -> None:
    lines = [
        f"{PREFIX} ERROR    Reporting training FAILURE",
        f"{PREFIX} ERROR    ExecuteUserScriptError:",
        "ExitCode 1",
        'Command "python train.py"',
        f"{PREFIX} WARNING  unknown field",
    ]
    assert programs(lines) == lines


@pytest.mark.parametrize("place", range(1, len(DUMP)))
def test_no_traceback_is_hidden_wherever_the_dump_is_cut(place: int) -> None:
    traceback = [
        "Traceback (most recent call last):",
        'File "train.py", line 3, in <module>',
        "raise KeyError('SM_CHANNEL_TRAINING')",
        "KeyError: 'SM_CHANNEL_TRAINING'",
    ]
    assert programs([*DUMP[:place], *traceback]) == traceback


def test_pip_speaks_after_the_toolkit_installs_and_its_errors_are_shown() -> None:
    lines = [
        f"{PREFIX} INFO     Installing dependencies from requirements.txt",
        "Looking in indexes: https://example.com/simple",
        "Collecting lightning",
        "  Downloading lightning-2.6-py3-none-any.whl (810 kB)",
        "     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 810.1/810.1 kB 20.0 MB/s",
        "Installing collected packages: lightning",
        "Successfully installed lightning-2.6",
        "[notice] A new release of pip is available",
        "ERROR: No matching distribution found for lightningg",
        f"{PREFIX} INFO     Invoking user script",
        "step=1;",
        "Collecting results",
    ]
    assert programs(lines) == [lines[8], "step=1;", "Collecting results"]


def test_what_another_rank_has_said_is_a_repeat_and_what_differs_is_not() -> None:
    sorter = LineKinds()
    assert kinds(["loading", "loading", "shard 1"], "algo-1", sorter) == ["program"] * 3
    assert kinds(["loading", "loading", "loading", "shard 2"], "algo-2", sorter) == [
        "repeat",
        "repeat",
        "program",
        "program",
    ]
    assert kinds(["[rank0]: ready", "[rank1]: ready", "[rank1]: ready"]) == [
        "program",
        "repeat",
        "program",
    ]
    assert kinds(["", ""], "algo-3", sorter) == ["program"] * 2


def test_no_nodes_traceback_is_a_repeat() -> None:
    sorter = LineKinds()
    lines = [
        "[rank0]: Traceback (most recent call last):",
        "  at x",
        "ValueError: no",
        "ValueError",
    ]
    for host in ("algo-1", "algo-2", "algo-3"):
        assert kinds(lines, host, sorter) == ["program"] * 4


def test_a_job_that_says_much_is_remembered_in_bounds() -> None:
    sorter = LineKinds()
    kinds([f"line {number}" for number in range(MAX_TEXTS_REMEMBERED + 1)], "algo-1", sorter)
    assert sorter.sort("algo-2", "line 0") == "program"
    assert sorter.sort("algo-2", "line 5000") == "repeat"


def test_the_platforms_words_on_quotas_are_not_the_programs() -> None:
    lines = [
        "[platform] boot took 28.5 s without a quota; 0.2 vCPU per node applies from now on",
        "[platform] 2.2 s of CPU in 12.2 s, with a quota of 2.4 s",
    ]
    assert kinds(lines) == ["platform"] * 2
    assert kinds(["[platform] algo-1 was killed: out of memory"]) == ["program"]


def test_captured_logs_keep_every_line_of_their_tracebacks() -> None:
    """Real logs of failed jobs keep all lines between a traceback and its error."""
    read = 0
    for path in sorted(CAPTURED.iterdir()):
        lines = path.read_text().splitlines()
        shown = programs(lines)
        for line in lines:
            if "Traceback" in line or "Error: " in line:
                read += 1
                assert line in shown, (path.name, line)
    assert read > 5


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step=4; loss=2.25;", Step(4, None)),
        ("Epoch 1 Step: 12/300 loss 3", Step(12, 300)),
        ("global step 7", Step(7, None)),
        ("train_seconds=64.4; steps=28;", None),
        ("one step at a time", None),
        ("x" * 2000 + " step=4", None),
    ],
)
def test_a_step_is_read_with_its_total(line: str, step: Step | None) -> None:
    assert step_of(line) == step


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step=12;", (12, None)),
        ("\x1b[1mstep\x1b[0m 12/300", (12, 300)),
        ("[1,mpirank:0,algo-1]<stdout>:step=12", (12, None)),
        ("2026-11-25 10:00:00 INFO train: Step: 12/300", (12, 300)),
        ("\rstep 1/3\rstep 2/3", (2, 3)),
        ("step 1,234/2,000", None),
        ("step 12/2,000", (12, None)),
        ("step 1.5", None),
    ],
)
def test_the_step_of_a_line_is_a_whole_number_of_its_last_state(line: str, step: tuple) -> None:
    assert step_of(line) == step


def test_ranks_below_one_launcher_say_the_same_line_once() -> None:
    said = [f"[1,mpirank:{rank},algo-{rank + 1}]<stdout>:loading" for rank in range(2)]
    said += [f"[default{rank}]:ready" for rank in range(2)]
    assert kinds(said) == ["program", "repeat", "program", "repeat"]


def test_agents_that_end_apart_are_not_the_programs() -> None:
    """The lines are torchrun's own at the end of a completed job, captured from torch 2.13."""
    race = (CAPTURED / "shutdown_race.log").read_text().splitlines()
    after = ["epoch 2 done", "frame #3: a program's own line"]
    assert programs([*race, *after]) == [race[0], "done 1", *after]


def test_a_ranks_own_words_on_a_lost_store_are_the_programs() -> None:
    race = (CAPTURED / "shutdown_race.log").read_text().splitlines()
    [lost] = [line for line in race if "TCPStore.cpp" in line]
    assert programs([f"[rank1]:{lost}"]) == [f"[rank1]:{lost}"]
