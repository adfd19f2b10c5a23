"""Log lines fit CloudWatch's limits, metric definitions extract numbers from them, and hosts name
buckets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from infra.local.tests.platform_client import run_job, session
from sagemaker_emulator.api.addressing import use_path_style
from sagemaker_emulator.jobs.utilisation import put_values
from sagemaker_emulator.log_streams import EVENT_MAX_BYTES, LogStreams, _batches
from sagemaker_emulator.process_identity import start_ticks
from sagemaker_emulator.training.metrics import NAMESPACE, MetricMatcher


class RecordingLogs:
    """Accepts calls of LogStreams and refuses all others."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.exceptions = SimpleNamespace(ResourceAlreadyExistsException=KeyError)

    def create_log_group(self, logGroupName: str) -> None:
        raise KeyError(logGroupName)

    def create_log_stream(self, logGroupName: str, logStreamName: str) -> None:
        assert logStreamName == "job/algo-1-1"

    def put_log_events(
        self, logGroupName: str, logStreamName: str, logEvents: list[dict[str, Any]]
    ) -> None:
        self.events += logEvents


def written(*lines: tuple[str, int]) -> list[dict[str, Any]]:
    logs = RecordingLogs()
    with LogStreams(logs, "group") as streams:
        streams.open("algo-1", "job/algo-1-1")
        for text, milliseconds in lines:
            streams.write("algo-1", text, milliseconds)
    return logs.events


def test_times_never_run_backwards() -> None:
    assert [event["timestamp"] for event in written(("a", 5), ("b", 3), ("c", 9))] == [5, 5, 9]


def test_empty_and_long_lines() -> None:
    empty, long = written(("", 1), ("é" * EVENT_MAX_BYTES, 1))
    assert empty["message"] == " "
    assert len(long["message"].encode()) == EVENT_MAX_BYTES


def test_batches_keep_to_the_services_limits() -> None:
    small = [{"timestamp": 1, "message": "x"}] * 10_001
    assert [len(batch) for batch in _batches(small)] == [10_000, 1]
    big = [{"timestamp": 1, "message": "x" * 300_000}] * 4
    assert [len(batch) for batch in _batches(big)] == [3, 1]


def test_metrics_take_numbers_only() -> None:
    matcher = MetricMatcher(
        [{"Name": "loss", "Regex": "loss=([^;]+);"}, {"Name": "none", "Regex": "x=(.*)"}]
    )
    for line in ("loss=2e-1; loss=0.1;", "loss=n/a;", "loss=nan;"):
        matcher.feed(line, 1500)
    assert matcher.final() == [{"MetricName": "loss", "Value": 0.1, "Timestamp": 1.5}]


def test_a_part_of_a_number_is_kept_as_cloudwatch_keeps_it() -> None:
    """The platform returns the value that the group matches, which nodesweep checks."""
    matcher = MetricMatcher([{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    matcher.feed("[1,0]<stdout>:loss=9.1e-05", 1000)
    assert [metric["Value"] for metric in matcher.final()] == [9.1]


def test_no_expression_keeps_the_platform_busy_with_a_line() -> None:
    matcher = MetricMatcher([{"Name": "m", "Regex": "(a+)+$"}, {"Name": "n", "Regex": "n=(.)"}])
    matcher.feed("n=3;" + "a" * 200_000 + "b", 1500)
    assert [metric["Value"] for metric in matcher.final()] == [3]


def test_bucket_in_the_host_name_becomes_a_path() -> None:
    environ = {
        "HTTP_HOST": "my-bucket.localhost:4570",
        "PATH_INFO": "/k y",
        "RAW_URI": "/k%20y?x",
        "REQUEST_URI": "/",
    }
    use_path_style(environ)
    assert environ["HTTP_HOST"] == "localhost:4570"
    assert (environ["PATH_INFO"], environ["RAW_URI"]) == ("/my-bucket/k y", "/my-bucket/k%20y?x")


def test_no_process_has_no_start() -> None:
    assert start_ticks(2**22 + 1) is None


LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def test_filter_by_prefix_gives_one_jobs_lines(platform: SimpleNamespace) -> None:
    for name in ("log-1", "log-11"):
        run_job(platform, name)
    answer = platform.logs.filter_log_events(logGroupName=LOG_GROUP, logStreamNamePrefix="log-1/")
    streams = {event["logStreamName"].partition("/")[0] for event in answer["events"]}
    assert streams == {"log-1"} and len(answer["events"]) == 3
    assert [one["logStreamName"].partition("/")[0] for one in answer["searchedLogStreams"]] == [
        "log-1"
    ]
    assert (
        platform.logs.filter_log_events(logGroupName=LOG_GROUP, logStreamNamePrefix="none/")[
            "events"
        ]
        == []
    )


def test_stream_that_is_not_there(platform: SimpleNamespace) -> None:
    run_job(platform, "has-streams")
    logs = platform.logs
    for ask in (
        lambda: logs.get_log_events(logGroupName=LOG_GROUP, logStreamName="absent"),
        lambda: logs.filter_log_events(logGroupName=LOG_GROUP, logStreamNames=["absent"]),
    ):
        with pytest.raises(
            ClientError,
            match=r"\(ResourceNotFoundException\).*The specified log stream does not exist",
        ):
            ask()
    with pytest.raises(ClientError, match="The specified log group does not exist"):
        logs.get_log_events(logGroupName="/absent", logStreamName="absent")
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\)"):
        logs.filter_log_events(
            logGroupName=LOG_GROUP, logStreamNames=["a"], logStreamNamePrefix="a"
        )


@pytest.mark.parametrize(
    "identifier", [LOG_GROUP, f"arn:aws:logs:us-east-1:000000000000:log-group:{LOG_GROUP}"]
)
def test_group_by_its_identifier(platform: SimpleNamespace, identifier: str) -> None:
    name = f"by-identifier-{len(identifier)}"
    run_job(platform, name)
    [first, *_] = platform.logs.filter_log_events(
        logGroupIdentifier=identifier, logStreamNamePrefix=f"{name}/"
    )["events"]
    got = platform.logs.get_log_events(
        logGroupIdentifier=identifier, logStreamName=first["logStreamName"], startFromHead=True
    )
    assert got["events"][0]["message"] == first["message"]
    with pytest.raises(ClientError, match="The specified log group does not exist"):
        platform.logs.filter_log_events(logGroupIdentifier=f"{identifier}-absent")
    with pytest.raises(ClientError, match=r"\(InvalidParameterException\).*not both"):
        platform.logs.filter_log_events(logGroupIdentifier=identifier, logGroupName=LOG_GROUP)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"logStreamNamePrefix": 5}, "SerializationException"),
        ({"logStreamNames": [{}]}, "SerializationException"),
        ({"logStreamNamePrefix": ""}, "InvalidParameterException"),
    ],
)
def test_request_that_breaks_the_model_of_logs(
    platform: SimpleNamespace, asked: dict[str, Any], code: str
) -> None:
    unchecked = session(platform.endpoint).client(
        "logs",
        endpoint_url=platform.endpoint,
        config=Config(parameter_validation=False, retries={"total_max_attempts": 1}),
    )
    with pytest.raises(ClientError) as caught:
        unchecked.filter_log_events(logGroupName=LOG_GROUP, **asked)
    assert caught.value.response["Error"]["Code"] == code


def test_more_values_than_a_call_takes_are_put_in_several():
    calls = []

    class CloudWatch:
        def put_metric_data(self, **call):
            calls.append(call)

    data = [{"Value": number} for number in range(2_500)]
    put_values(CloudWatch(), NAMESPACE, data)
    assert [len(call["MetricData"]) for call in calls] == [1_000, 1_000, 500]
    assert [datum for call in calls for datum in call["MetricData"]] == data
    assert {call["Namespace"] for call in calls} == {NAMESPACE}
