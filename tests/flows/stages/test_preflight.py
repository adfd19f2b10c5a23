from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nodesweep.cli.commands.plan import describe_plan, plan_of
from nodesweep.cli.main import main
from nodesweep.configs.models import BenchmarkConfig, PlatformConfig
from nodesweep.errors import PreflightRefused
from nodesweep.flows.scaling_benchmark import scaling_benchmark
from nodesweep.flows.stages import preflight as stage
from nodesweep.launch.registry import Backend
from nodesweep.launch.sagemaker import backend
from nodesweep.launch.sagemaker.preflight.identity import needs_of
from nodesweep.scaling.job import JobSpec
from nodesweep.scaling.rules.rule import Facts, Findings
from nodesweep.tasks import calls
from nodesweep.tasks.report.pricing import PricedType, PriceQuery, with_price

Configs = Callable[..., BenchmarkConfig]
LOCAL = str(Path(__file__).resolve().parents[3] / "configs" / "local.yaml")


def at_two_dollars(backend: Backend, asked: Sequence[PriceQuery]) -> list[PricedType]:
    on = date(2026, 11, 20)
    region = backend.platform.region
    return [(with_price(instance, region, 2.0, on), ("priced",)) for instance, _ in asked]


def answer(*problems: str) -> Callable[..., Findings]:
    return lambda backend, facts: Findings(problems, ("seen",))


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """Responses of the account, one per preflight; nodes cost 2 USD per hour."""
    answers: list[Findings] = []

    def ask(backend: Backend, facts: Facts) -> Findings:
        return answers.pop(0)

    monkeypatch.setattr(calls, "check_platform", ask)
    monkeypatch.setattr(calls, "look_up_prices", at_two_dollars)
    return answers


def test_bound_is_at_the_current_price(make_config: Configs) -> None:
    config = make_config()
    checked = stage.check_account(plan_of(config), at_two_dollars, answer())
    plan = checked.facts.plan
    # (1 + 2) nodes x (1 h + 120 s to stop) x 2 attempts x 2 USD
    assert plan.cost_bound_usd == pytest.approx(12.4)
    assert "2.0 USD/h (us-east-1, 2026-11-20)" in plan.cost_bound_reason
    assert checked.findings.notices == ("seen", "priced")


def with_wrong_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build requests that the installed botocore does not accept."""
    render = backend.render

    def wrong(platform: PlatformConfig, spec: JobSpec) -> Mapping[str, Any]:
        changed = {"StoppingCondition": {"MaxRuntimeInSeconds": "an hour"}}
        return {**render(platform, spec), **changed}

    monkeypatch.setattr(backend, "render", wrong)


def test_a_request_of_a_wrong_shape_is_refused_by_plan_once_for_all_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_wrong_request(monkeypatch)
    result = CliRunner().invoke(main, ["plan", LOCAL])
    assert result.exit_code == 3
    assert result.output.count("StoppingCondition.MaxRuntimeInSeconds") == 1


def test_a_request_of_a_wrong_shape_is_refused_by_a_run_before_anything_is_sent(
    make_config: Configs, account: list[Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wrong_request(monkeypatch)
    account.append(Findings())
    with pytest.raises(PreflightRefused, match=r"StoppingCondition\.MaxRuntimeInSeconds"):
        stage.preflight(make_config())


def test_account_is_asked_for_the_container_that_runs_as_it_is(
    make_config: Configs, tmp_path: Path
) -> None:
    registry = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
    base = f"{registry}/pytorch-training:2.5.1-cpu-py311-ubuntu22.04-sagemaker"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    image = {"context": None, "base_image": base}
    config = make_config(image=image, training={"source_dir": str(tmp_path / "code")})
    asked: list[Facts] = []

    def ask(backend: Backend, facts: Facts) -> Findings:
        asked.append(facts)
        return Findings()

    assert stage.check_account(plan_of(config), at_two_dollars, ask).findings.problems == ()
    assert asked[0].config.image.uri == base
    repositories = [
        need.resource for need in needs_of(asked[0].config) if ":repository/" in need.resource
    ]
    assert repositories == ["arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training"]


def test_container_that_runs_as_it_is_must_carry_the_option(make_config: Configs) -> None:
    """An image that is built upon may still get what it lacks; this one is final."""
    image = {
        "base_image": (
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.13-cu133-amzn2023-sagemaker"
        )
    }
    training = {
        "instance_type": "ml.p4d.24xlarge",
        "distribution": {"kind": "smddp"},
        "source_dir": "code",
    }
    built = plan_of(make_config(image={"context": "image", **image}, training=training))
    as_it_is = plan_of(make_config(image={"context": None, **image}, training=training))
    assert [problem for problem in built.findings.problems if "SMDDP" in problem] == []
    assert [problem for problem in as_it_is.findings.problems if "SMDDP" in problem] != []


def test_current_price_may_break_the_budget_beside_what_the_account_lacks(
    make_config: Configs,
) -> None:
    config = make_config(sweep={"budget_usd": 11.0})
    assert plan_of(config).findings.problems == ()
    found = stage.check_account(
        plan_of(config), at_two_dollars, answer("no bucket", "no role")
    ).findings
    assert found.problems[0].startswith("sweep.budget_usd: 11.0 ")
    assert "12.40 USD" in found.problems[0]
    assert found.problems[1:] == ("no bucket", "no role")


def test_preflight_asks_nothing_where_an_offline_rule_is_broken(
    make_config: Configs, account: list[Findings]
) -> None:
    with pytest.raises(PreflightRefused, match="divisible by 3"):
        stage.preflight(make_config(sweep={"node_counts": [3]}))  # the account has no answer ready


def test_preflight_refuses_with_every_online_problem(
    make_config: Configs, account: list[Findings], caplog: pytest.LogCaptureFixture
) -> None:
    account += [Findings(("no bucket", "no role"), ("unchecked quota",)), Findings()]
    with (
        caplog.at_level(logging.INFO, "nodesweep.preflight"),
        pytest.raises(PreflightRefused) as refused,
    ):
        stage.preflight(make_config())
    assert refused.value.problems == ("no bucket", "no role")
    assert "notice: unchecked quota" in caplog.text
    assert stage.preflight(make_config()).cost_bound_usd == pytest.approx(12.4)


def plan_command(endpoint: str, *arguments: str) -> Result:
    command = ["plan", LOCAL, "--set", f"platform.endpoint_url={endpoint}", *arguments]
    return CliRunner().invoke(main, command)


def test_plan_asks_the_account_only_with_online(served: SimpleNamespace) -> None:
    own = ("--set", f"platform.state_directory={served.state_dir}")
    assert "notice" not in plan_command(served.endpoint).output
    online = plan_command(served.endpoint, "--online", *own)
    assert online.exit_code == 0
    assert "notice: network, role and price" in online.output
    largest = ("--set", "sweep.node_counts=[1, 16]", "--set", "sweep.max_parallel_jobs=1")
    refused = plan_command(served.endpoint, "--online", *own, *largest)
    assert refused.exit_code == 3
    assert "for training job usage' is 8, but the sweep needs 16 " in refused.output
    assert "notice: platform.bucket: nodesweep-local " in online.output


def test_plan_shows_how_nodes_of_aws_can_be_had(served: SimpleNamespace) -> None:
    own = ("--set", f"platform.state_directory={served.state_dir}")
    sold = ("--set", "training.instance_type=ml.m5.large")
    assert "on demand: " not in plan_command(served.endpoint, *own, *sold).output
    online = plan_command(served.endpoint, "--online", *own, *sold).output
    assert "on demand: quota not listed" in online
    assert "training plan: not available" in online


def test_plan_says_the_age_of_an_old_price(make_config: Configs) -> None:
    lines = describe_plan(plan_of(make_config(training={"instance_type": "ml.p3.16xlarge"})))
    [old] = [line for line in lines.split("\n") if "prices refresh" in line]
    assert old.startswith("the price of ml.p3.16xlarge is from 2021-11-29 (")
    assert "prices refresh" not in describe_plan(
        plan_of(make_config(training={"instance_type": "ml.local.small"}))
    )


def test_plan_refuses_what_the_account_lacks(served: SimpleNamespace) -> None:
    refused = plan_command(
        served.endpoint,
        "--online",
        *("--set", f"platform.state_directory={served.state_dir}"),
        *("--set", "platform.create_missing=false"),
    )
    assert refused.exit_code == 3
    assert "cost bound" in refused.output
    assert "platform.bucket: nodesweep-local " in refused.output


def test_plan_with_a_broken_offline_rule_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "check_account", lambda *_: pytest.fail("the account was asked"))
    assert (
        plan_command("http://127.0.0.1:9", "--online", "--set", "sweep.node_counts=[3]").exit_code
        == 3
    )


def test_plan_refuses_an_image_that_mpirun_could_not_start(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        "FROM python:3.11-slim\nRUN pip install -r requirements.txt\n"
    )
    (tmp_path / "requirements.txt").write_text("torch\n")
    mpi = [
        "--set",
        f"image.context={tmp_path}",
        "--set",
        "training.distribution={kind: mpi, processes_per_node: 1}",
    ]
    command = ["plan", LOCAL, *mpi]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 3
    assert "`python -m mpi4py`" in refused.output
    (tmp_path / "requirements.txt").write_text("torch\nmpi4py\n")
    assert CliRunner().invoke(main, command).exit_code == 0


@pytest.mark.usefixtures("prefect")
def test_flow_begins_with_the_online_rules(
    pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pipeline_config(
        "scaling", platform={"create_missing": False, "bucket": "nowhere-at-all"}
    )
    monkeypatch.setattr(
        "nodesweep.flows.scaling_benchmark.prepare_store", lambda _: pytest.fail("the flow went on")
    )
    with pytest.raises(PreflightRefused, match=r"platform\.bucket: nowhere-at-all "):
        scaling_benchmark(config)


@pytest.mark.usefixtures("prefect")
def test_report_is_at_the_current_price(
    pipeline_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodesweep.flows.report.look_up_prices", at_two_dollars)
    report = scaling_benchmark(pipeline_config("scaling", sweep={"node_counts": [1]})).report
    price = report.price
    assert (price.usd_per_hour, price.source, price.date) == (
        2.0,
        "AWS Price List Query API",
        "2026-11-20",
    )


def test_the_rules_see_the_container_that_the_framework_stands_for(make_config: Configs) -> None:
    training = {"instance_type": "ml.p4d.24xlarge", "distribution": {"kind": "smddp"}}
    image = {"framework": {"version": "2.6.0", "python": "py312"}}
    hints = plan_of(make_config(training=training, image=image)).findings.hints
    assert any("pytorch-training:2.6.0-gpu-py312" in hint and "smddp" in hint for hint in hints)


def test_a_variable_that_is_not_set_is_refused_by_a_run_and_not_by_a_plan(
    make_config: Configs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN_OF_MINE", raising=False)
    monkeypatch.setattr(calls, "check_platform", None)  # nothing is asked
    config = make_config(training={"environment": {"HF_TOKEN": "${TOKEN_OF_MINE}"}})
    assert plan_of(config).findings.problems == ()
    with pytest.raises(PreflightRefused, match=r"training\.environment\.HF_TOKEN.*TOKEN_OF_MINE"):
        stage.preflight(config)
