"""The chaos program: its proxy causes the configured faults, and a short run works."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlparse

import pytest

from benchmarks.chaos import __main__ as chaos_program
from benchmarks.chaos import proxy as chaos_proxy
from benchmarks.chaos.forks import Forked, Forks
from benchmarks.chaos.plan import (
    CALL_FAULTS,
    UNDISTURBED,
    CallFault,
    ChaosPlan,
    Disturbance,
    Kind,
    Lag,
    Trigger,
    draw_plan,
)
from benchmarks.chaos.proxy import Proxy, label_of
from benchmarks.chaos.run import Saboteur
from benchmarks.chaos.world import REPOSITORY
from infra.local.tests.engine.engine_bench import HANG_SECONDS
from infra.local.tests.platform_client import wait_until
from nodesweep.configs.models import BenchmarkConfig
from tests.flows.simulated_sweep import write_config
from tests.hostile_server import DRIPS, dripping_server

SWEEP = "chaos-20261121024705-75cbf942"


def test_a_seed_is_one_plan() -> None:
    assert draw_plan(7) == draw_plan(7)
    assert len({draw_plan(seed).disturbances for seed in range(50)}) == 50


def test_every_fifth_first_try_is_a_workers() -> None:
    kinds = [draw_plan(seed).disturbances[0].kind for seed in range(50)]
    assert [seed for seed, kind in enumerate(kinds) if kind.startswith("worker")] == list(
        range(4, 50, 5)
    )


def test_every_other_fifth_first_try_is_detached() -> None:
    kinds = [draw_plan(seed).disturbances[0].kind for seed in range(50)]
    assert [seed for seed, kind in enumerate(kinds) if kind.startswith("detach")] == list(
        range(3, 50, 5)
    )


def test_every_third_seed_is_validated_on_spark_and_struck_there() -> None:
    plans = [draw_plan(seed) for seed in range(120)]
    on_spark = [plan for plan in plans if plan.on_spark]
    assert [plan.seed for plan in on_spark] == list(range(2, 120, 3))
    firsts = [plan.disturbances[0] for plan in on_spark]
    labels = {one.trigger.label for one in firsts if not one.kind.startswith("detach")}
    assert labels == {
        "CreateProcessingJob",
        "DescribeProcessingJob",
        "PUT request",
        "GET verdict",
        "PUT record",
    }
    of_jobs = {rule["fault"] for plan in plans for rule in plan.api_faults if "jobs" in rule}
    assert of_jobs == {"pending", "capacity_error", "internal_error"}


def test_every_fault_is_drawn() -> None:
    plans = [draw_plan(seed) for seed in range(100)]
    assert {disturbance.kind for plan in plans for disturbance in plan.disturbances} == set(
        get_args(Kind)
    )
    lags = [plan.lag for plan in plans]
    assert {lag.list_seconds for lag in lags} == {0.0, 2.0, 6.0}
    assert all(
        any(getattr(lag, name) for lag in lags) for name in ("describe_seconds", "tags_seconds")
    )
    assert {plan.keep_alive_seconds for plan in plans} == {None, 3600}


def test_calls_are_spoilt_at_the_stated_rate() -> None:
    plan = ChaosPlan(seed=1, disturbances=(), fault_share=0.01)
    drawn = [plan.call_fault("ListTags", number) for number in range(20_000)]
    # 200 of each expected, standard deviation 14.
    assert all(140 < drawn.count(fault) < 260 for fault in CALL_FAULTS)
    assert drawn.count(None) > 18_000
    assert all(UNDISTURBED.call_fault("ListTags", number) is None for number in range(100))


@pytest.mark.parametrize(
    ("method", "path", "target", "body", "label"),
    [
        ("POST", "/", "SageMaker.CreateTrainingJob", b"{}", "CreateTrainingJob"),
        ("POST", "/", "", b"Action=GetRole&RoleName=a", "GetRole"),
        ("PUT", "/chaos/nodesweep/datasets/tiny/ab/data/a.parquet", "", b"", "PUT datasets"),
        ("PUT", f"/chaos/nodesweep/sweeps/{SWEEP}/config.json", "", b"", "PUT record"),
        ("PUT", f"/chaos/nodesweep/sweeps/{SWEEP}/report/report.json", "", b"", "PUT report"),
        (
            "GET",
            f"/chaos/nodesweep/sweeps/{SWEEP}/jobs/a/output/output.tar.gz",
            "",
            b"",
            "GET output",
        ),
        (
            "PUT",
            f"/chaos/nodesweep/sweeps/{SWEEP}/jobs/{SWEEP}-v1-0123abcd/request/request.json",
            "",
            b"",
            "PUT request",
        ),
        ("GET", "/chaos?list-type=2", "", b"", "GET bucket"),
    ],
)
def test_calls_are_labelled(method: str, path: str, target: str, body: bytes, label: str) -> None:
    assert label_of(method, path, target, body) == label


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[bytes]

    def do_PUT(self) -> None:
        self.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response_only(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[bytes]]]:
    """Serve `ok` to every PUT; yield the endpoint and the bodies that arrived."""
    seen: list[bytes] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Upstream,), {"seen": seen}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", seen
    server.shutdown()
    server.server_close()


def put(proxy: Proxy) -> tuple[int, bytes] | None:
    """Put training code; return (status, body), or None if the connection ended without a
    response."""
    connection = http.client.HTTPConnection(str(urlparse(proxy.endpoint).netloc), timeout=300)
    try:
        connection.request("PUT", "/chaos/nodesweep/code/ab/sourcedir.tar.gz", b"body")
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (ConnectionError, http.client.BadStatusLine):
        return None
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("fault", "arrived", "status"),
    [
        (None, 1, 200),
        ("dropped", 0, None),
        ("answer_lost", 1, None),
        ("late_500", 1, 500),
        ("unavailable", 0, 503),
        ("page", 0, 403),
        ("unanswered", 0, None),
        ("delayed", 1, 200),
        ("request_twice", 2, 200),
        ("answer_twice", 1, 200),
    ],
)
def test_proxy_spoils_a_call(
    upstream: tuple[str, list[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    fault: CallFault | None,
    arrived: int,
    status: int | None,
) -> None:
    monkeypatch.setattr(chaos_proxy, "_DELAY_SECONDS", 0.0)
    if fault == "unanswered":
        monkeypatch.setattr(chaos_proxy, "_UPSTREAM_SECONDS", 0.5)
    endpoint, seen = upstream
    with Proxy(endpoint, lambda label, number: fault) as proxy:
        answer = put(proxy)
    assert seen == [b"body"] * arrived
    assert (answer and answer[0]) == status
    assert dict(proxy.faults) == ({fault: 1} if fault else {})
    # What reached the platform is recorded once, however often it was sent on.
    assert [call.answered for call in proxy.calls] == [
        fault not in ("answer_lost", "late_500")
    ] * bool(arrived)


@pytest.mark.parametrize(("moment", "arrived"), [("before", 0), ("after", 1)])
def test_proxy_cuts_off_the_call_that_strikes(
    upstream: tuple[str, list[bytes]], moment: str, arrived: int
) -> None:
    endpoint, seen = upstream
    with Proxy(endpoint, lambda label, number: None) as proxy:
        proxy.begin_try(lambda *call: call == ("PUT code", 2, moment))
        assert put(proxy) == (200, b"ok")
        assert put(proxy) is None
        assert len(seen) == 1 + arrived


def test_nobody_gets_through_in_an_outage(upstream: tuple[str, list[bytes]]) -> None:
    endpoint, seen = upstream
    with Proxy(endpoint, lambda label, number: None) as proxy:
        proxy.go_down(3600)
        assert put(proxy) is None
        proxy.go_down(0)
        assert put(proxy) == (200, b"ok")
    assert len(seen) == 1


@pytest.mark.parametrize("ended_before", [True, False])
def test_what_comes_after_the_end_of_its_try_does_not_strike(
    upstream: tuple[str, list[bytes]], ended_before: bool
) -> None:
    begun: list[str] = []
    with Proxy(upstream[0], lambda label, number: None) as proxy:
        trigger = Trigger("PUT code", 1, "after", delay_seconds=3600 if ended_before else 0.2)
        saboteur = Saboteur(Disturbance("stop", trigger, 0), proxy, begun.append)
        proxy.begin_try(saboteur)
        put(proxy)
        if ended_before:
            saboteur.end()
            [timer] = saboteur._timers
            timer.join(HANG_SECONDS)
            assert not timer.is_alive()
        else:
            wait_until(lambda: begun and saboteur.struck)
    assert (begun, saboteur.struck) == (([], False) if ended_before else (["stop"], True))


class SageMaker(BaseHTTPRequestHandler):
    """A SageMaker that has one job from the beginning."""

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        said: dict[str, Any] = {
            "ListTrainingJobs": {"TrainingJobSummaries": [{"TrainingJobName": "job"}]},
            "ListTags": {"Tags": [{"Key": "a", "Value": "b"}]},
        }.get(operation, {"TrainingJobName": "job"})
        body = json.dumps(said).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


def test_proxy_knows_a_new_job_late() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SageMaker)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"

    def ask(proxy: Proxy, operation: str, **body: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(str(urlparse(proxy.endpoint).netloc), timeout=300)
        connection.request(
            "POST", "/", json.dumps(body), {"X-Amz-Target": f"SageMaker.{operation}"}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def known(proxy: Proxy) -> tuple[int, int, int, int]:
        """Return (number of listed jobs, status of a description, status of a stop, number of
        tags)."""
        listed = ask(proxy, "ListTrainingJobs")[1]["TrainingJobSummaries"]
        tags = ask(proxy, "ListTags", ResourceArn="arn:aws:sagemaker:us-east-1:1:training-job/job")[
            1
        ]["Tags"]
        statuses = (
            ask(proxy, name, TrainingJobName="job")[0]
            for name in ("DescribeTrainingJob", "StopTrainingJob")
        )
        return len(listed), *statuses, len(tags)  # type: ignore[return-value]

    with Proxy(endpoint, lambda label, number: None, Lag(3600, 3600, 3600)) as proxy:
        assert known(proxy) == (1, 200, 200, 1), "an old job"
        ask(proxy, "CreateTrainingJob", TrainingJobName="job")
        assert known(proxy) == (0, 400, 400, 0)
    with Proxy(endpoint, lambda label, number: None, Lag()) as proxy:
        ask(proxy, "CreateTrainingJob", TrainingJobName="job")
        assert known(proxy) == (1, 200, 200, 1)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--seeds=x", "neither FIRST:END"),
        ("--seeds=2:9:0", "neither FIRST:END"),
        ("--seeds=2:9:3:1", "neither FIRST:END"),
        ("--seeds=3:3", "END must be above FIRST"),
        ("--at-once=0", "not a number of runs"),
        ("--at-once=two", "not a number of runs"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        chaos_program.main([option])
    assert message in capsys.readouterr().err


def is_connected(process: Forked, endpoint: str) -> bool:
    """Return True if the process has an established connection to the endpoint."""
    remote = f":{urlparse(endpoint).port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(remote) and row[3] == "01"}
    return any(os.readlink(file) in sockets for file in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.slow
def test_a_fork_is_a_process_like_any_other(
    tmp_path: Path, benchmark_config: BenchmarkConfig
) -> None:
    """A fork has a separate session, folder, log and end, however it ends, while another
    continues."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with closing(Forks(environment)) as forks, dripping_server(DRIPS["silent"]) as endpoint:
        platform = benchmark_config.platform.model_copy(
            update={"endpoint_url": endpoint, "credentials": "platform"}
        )
        config = write_config(benchmark_config.model_copy(update={"platform": platform}), tmp_path)

        def asking(log: str) -> Forked:
            """Request the platform's response, and wait 10 s for it."""
            return forks.start(["history", "a", "--config", config.name], tmp_path, tmp_path / log)

        killed, interrupted, waiting = (asking(log) for log in ("killed", "interrupted", "waiting"))
        said = forks.start(["--version"], tmp_path, tmp_path / "said")
        assert said.wait(300) == 0 and "nodesweep" in (tmp_path / "said").read_text()
        assert forks.start(["no-such-command"], tmp_path, tmp_path / "refused").wait(300) == 2
        assert {os.getsid(one.pid) for one in (killed, interrupted)} == {
            killed.pid,
            interrupted.pid,
        }
        wait_until(lambda: is_connected(interrupted, endpoint))  # Python's start is over
        os.killpg(killed.pid, signal.SIGKILL)
        interrupted.send_signal(signal.SIGINT)
        assert (killed.wait(300), interrupted.wait(300)) == (-signal.SIGKILL, 1)
        assert "nodesweep: interrupted" in (tmp_path / "interrupted").read_text()
        assert waiting.wait(300) == 1
        assert endpoint in (tmp_path / "waiting").read_text()


WORKER_KILLED = Disturbance("worker_kill", Trigger("CreateTrainingJob", 3, "before", 0.0), 0.0)
KILLED = Disturbance("kill", Trigger("CreateTrainingJob", 2, "after", 0.0), 0.0)
CHOSEN = {19: (WORKER_KILLED, KILLED)}
"""Plans in place of those that the seeds would draw."""


@pytest.mark.slow
def test_sweeps_are_done_whatever_strikes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults strike all along: a killed worker, then kill -9 at a create whose response is lost,
    and spoiled calls.

    In seed 35 kill -9 comes before a Processing job is sent, then that job is lost, then comes a
    stop. tests/flows has SIGTERM (stages/test_end_signals.py), a detached sweep that is cut off,
    and a list that lags.
    """

    def plan_of(seed: int) -> ChaosPlan:
        return ChaosPlan(seed, CHOSEN[seed]) if seed in CHOSEN else draw_plan(seed)

    monkeypatch.setattr(chaos_program, "draw_plan", plan_of)
    places = ["--work-dir", str(tmp_path / "work"), "--output", str(tmp_path / "result.json")]
    assert chaos_program.main(["--seeds", "19:36:16", "--at-once", "2", *places]) == 0
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert [line.split()[0] for line in result["runs"]] == ["19", "35"]
    assert result["broken"] == []
    # What seed 35 draws strikes at a time, which may come after the end of its try.
    assert Counter(result["summary"]["struck"]) >= Counter(["worker_kill", "kill"])
    assert result["summary"]["runs"] == 2 and result["seconds_per_seed"]["cpu"] > 1
