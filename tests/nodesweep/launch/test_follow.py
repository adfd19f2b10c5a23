from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError
from syrupy.assertion import SnapshotAssertion

from nodesweep.launch.follow import (
    BURST_LINES,
    LINES_PER_MINUTE,
    MAX_LINE_CHARACTERS,
    MAX_LINES_PER_POLL,
    LogFollower,
)
from nodesweep.launch.sagemaker.cloudwatch import CloudWatchLog
from nodesweep.launch.sagemaker.logs import LOG_GROUP
from nodesweep.polling import Clock


@pytest.fixture
def said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[], list[str]]:
    """Return the messages logged since the last call."""
    monkeypatch.setattr(logging.getLogger("nodesweep"), "propagate", True)
    caplog.set_level(logging.INFO, "nodesweep")

    def read() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    return read


class Job:
    """A job whose nodes write to CloudWatch Logs; times are milliseconds after `started`."""

    def __init__(self, logs: Any) -> None:
        self.logs, self.started = logs, datetime.now(UTC)
        logs.create_log_group(logGroupName=LOG_GROUP)

    def write(self, host: str, *lines: tuple[int, str]) -> None:
        stream = f"job/{host}-1700000000000"
        known = self.logs.describe_log_streams(logGroupName=LOG_GROUP)["logStreams"]
        if stream not in [each["logStreamName"] for each in known]:
            self.logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        start = int(self.started.timestamp() * 1000)
        events = [{"timestamp": start + offset, "message": text} for offset, text in lines]
        self.logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)


@pytest.fixture
def job(aws: Callable[[str], Any]) -> Job:
    return Job(aws("logs"))


def following(job: Job, after: timedelta = timedelta(0)) -> LogFollower:
    follower = LogFollower(partial(CloudWatchLog, job.logs))
    follower.begin(["job"], job.started + after)
    return follower


def test_the_furthest_step_of_the_program_is_kept(job: Job) -> None:
    follower = following(job)
    assert follower.last_step("job") is None
    job.write(
        "algo-1", (1, "step 3/16"), (2, "step 2"), (3, "[platform] boot took 2.0 s to step 9")
    )
    follower.poll("job")
    assert follower.last_step("job") == (3, 16)
    job.write("algo-1", (4, "step 5"))
    follower.poll("job")
    assert follower.last_step("job") == (5, 16)


def test_new_lines_of_all_nodes_are_merged_by_time_and_said_once(
    job: Job, said: Callable[[], list[str]]
) -> None:
    follower = following(job)
    follower.poll("job")
    assert said() == [], "no stream yet"
    job.write("algo-1", (1, "one\n"), (3, "three"))
    job.write("algo-2", (2, "two"))
    follower.poll("job")
    assert said() == ["algo-1: one", "algo-2: two", "algo-1: three"]
    job.write("algo-2", (4, "four"))
    follower.poll("job")
    follower.poll("job")
    assert said() == ["algo-2: four"]


def test_lines_from_before_are_not_said_again(job: Job, said: Callable[[], list[str]]) -> None:
    job.write("algo-1", (1, "old"), (60_000, "new"))
    following(job, timedelta(seconds=30)).poll("job")
    assert said() == ["algo-1: new"]


def test_a_burst_is_cut_to_its_last_lines(job: Job, said: Callable[[], list[str]]) -> None:
    job.write("algo-1", *((offset, f"line {offset}") for offset in range(MAX_LINES_PER_POLL + 5)))
    following(job).poll("job")
    messages = said()
    assert "5 lines" in messages[0] and messages[0].endswith(f"{LOG_GROUP}, job/*")
    assert messages[1:] == [f"algo-1: line {offset}" for offset in range(5, MAX_LINES_PER_POLL + 5)]


def chatter(seconds: int, lines: int) -> dict[str, Any]:
    """Return a page with that many new lines of that second."""
    return {"events": [event(seconds, f"{seconds}.{number}") for number in range(lines)]}


def test_a_job_that_never_stops_talking_is_held_to_its_lines_a_minute(
    said: Callable[[], list[str]],
) -> None:
    """There is a poll every second for 3 minutes, each with 50 new lines; shown and omitted lines
    add up."""
    seconds, now = 180, 0.0
    logs = Pages(*(chatter(200 + second, 50) for second in range(seconds)))
    follower = LogFollower(partial(CloudWatchLog, logs), Clock(lambda: now))
    follower.begin(["job"], datetime.fromtimestamp(100, UTC))
    for second in range(seconds):
        now = float(second)
        follower.poll("job")
    messages = said()
    left_out = [message for message in messages if "lines left out" in message]
    shown = [message for message in messages if message.startswith("algo-1: ")]
    assert len(shown) <= BURST_LINES + LINES_PER_MINUTE / 60 * seconds
    assert len(shown) >= LINES_PER_MINUTE / 60 * seconds
    assert len(shown) + sum(int(message.split()[2]) for message in left_out) == 50 * seconds
    assert [LOG_GROUP in message for message in left_out[:2]] == [
        True,
        False,
    ], "where the log is, is said once"
    assert shown[-1] == "algo-1: 379.49", "the newest"


def test_jobs_have_their_lines_each(said: Callable[[], list[str]]) -> None:
    pages = [chatter(200 + look, 10) for look in range(3)]
    other = {"events": [event(200, "theirs", "other/algo-1-1")]}
    follower = LogFollower(partial(CloudWatchLog, Pages(*pages, other)), Clock(lambda: 0.0))
    follower.begin(["job", "other"], datetime.fromtimestamp(100, UTC))
    for name in ("job", "job", "job", "other"):
        follower.poll(name)
    *_, last_of_job, of_other = said()
    assert "10 lines" in last_of_job
    assert of_other == "algo-1: theirs"


def test_a_line_without_an_end_is_cut(said: Callable[[], list[str]]) -> None:
    poll(Pages({"events": [event(200, "x" * 5000)]}), 1)
    (line,) = said()
    assert len(line) < MAX_LINE_CHARACTERS + 50
    assert f" … {5000 + len('algo-1: ') - MAX_LINE_CHARACTERS} " in line


class Pages:
    """A log with given pages; `asked` holds each query."""

    def __init__(self, *pages: dict[str, Any] | Exception) -> None:
        self.pages, self.asked = list(pages), list[dict[str, Any]]()

    def filter_log_events(self, **query: Any) -> dict[str, Any]:
        self.asked.append(query)
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page


def event(seconds: int, text: str, stream: str = "job/algo-1-1700000000000") -> dict[str, Any]:
    return {"timestamp": seconds * 1000, "eventId": text, "logStreamName": stream, "message": text}


def refusal(code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {}}, "FilterLogEvents"
    )


def poll(logs: Pages, times: int) -> None:
    follower = LogFollower(partial(CloudWatchLog, logs))
    follower.begin(["job"], datetime.fromtimestamp(100, UTC))
    for _ in range(times):
        follower.poll("job")


def test_line_of_a_node_that_sends_late_is_said(said: Callable[[], list[str]]) -> None:
    """Up to 10 s before the newest line; those that were said are asked for again, and not said
    again.
    """
    early, late = event(200, "early"), event(195, "late", "job/algo-2-1700000000000")
    logs = Pages({"events": [early]}, {"events": [late, early]}, {"events": [late, early]})
    poll(logs, 3)
    assert said() == ["algo-1: early", "algo-2: late"]
    assert [query["startTime"] for query in logs.asked] == [100_000, 190_000, 190_000]


def test_further_page_is_read_by_the_next_poll_with_the_same_query(
    said: Callable[[], list[str]],
) -> None:
    pages: list[Any] = [
        {"events": [event(200, "one")], "nextToken": "t"},
        {"events": [event(300, "two")]},
        {"events": []},
    ]
    log = CloudWatchLog(Pages(*pages), "job", datetime.fromtimestamp(100, UTC))
    assert [(list(log.new_lines()), log.has_more) for _ in range(2)] == [
        ([(200_000, "algo-1: one")], True),
        ([(300_000, "algo-1: two")], False),
    ]
    logs = Pages(*pages)
    poll(logs, 3)
    assert said() == ["algo-1: one", "algo-1: two"]
    assert [(query["startTime"], query.get("nextToken")) for query in logs.asked] == [
        (100_000, None), (100_000, "t"), (290_000, None),
    ]  # fmt: skip


def test_lines_of_another_job_are_left_out(said: Callable[[], list[str]]) -> None:
    poll(Pages({"events": [event(200, "theirs", "job2/algo-1-1"), event(201, "ours")]}), 1)
    assert said() == ["algo-1: ours"]


def test_job_that_is_followed_goes_on_where_it_is() -> None:
    logs = Pages({"events": []})
    follower = LogFollower(partial(CloudWatchLog, logs))
    follower.begin(["job"], datetime.fromtimestamp(100, UTC))
    follower.begin(["job"], datetime.fromtimestamp(500, UTC))
    follower.poll("job")
    assert logs.asked[0]["startTime"] == 100_000


def test_a_log_that_cannot_be_read_is_one_warning(
    said: Callable[[], list[str]], snapshot: SnapshotAssertion
) -> None:
    logs = Pages(refusal("AccessDeniedException"))
    poll(logs, 2)
    (warning,) = said()
    assert warning == snapshot
    assert len(logs.asked) == 1


def test_throttled_log_is_followed_on(said: Callable[[], list[str]]) -> None:
    poll(Pages(refusal("ThrottlingException"), {"events": [event(200, "line")]}), 2)
    assert said() == ["algo-1: line"]


def test_account_without_a_training_log_is_no_warning(said: Callable[[], list[str]]) -> None:
    poll(Pages(refusal("ResourceNotFoundException"), {"events": [event(200, "line")]}), 2)
    assert said() == ["algo-1: line"]


def test_a_private_key_that_a_job_prints_line_by_line_is_hidden_whole(
    job: Job, said: Callable[[], list[str]]
) -> None:
    """Over several looks, and between the lines of another node."""
    follower = following(job)
    job.write("algo-1", (1, "-----BEGIN PRIVATE KEY-----"), (3, "MIIEvAIBADAN"))
    job.write("algo-2", (2, "train_loss=0.5"))
    follower.poll("job")
    assert said() == ["algo-1: (hidden)", "algo-2: train_loss=0.5", "algo-1: (hidden)"]
    job.write("algo-1", (4, "BgkqhkiG9w0B"), (5, "-----END PRIVATE KEY-----"), (6, "epoch 1"))
    follower.poll("job")
    assert said() == ["algo-1: (hidden)", "algo-1: (hidden)", "algo-1: epoch 1"]


def test_first_step_is_seen_in_lines_that_are_not_said(said: Callable[[], list[str]]) -> None:
    """A poll shows only the newest lines of a chatty job, but the step may be in any line."""
    lines = [event(200, "step=1;"), *(event(201, f"chatter {number}") for number in range(50))]
    logs = Pages({"events": [event(199, "loading")]}, {"events": lines})
    follower = LogFollower(partial(CloudWatchLog, logs))
    follower.begin(["job"], datetime.fromtimestamp(100, UTC), lambda line: "step=" in line)
    follower.poll("job")
    assert not follower.has_stepped("job")
    follower.poll("job")
    assert follower.has_stepped("job") and not any("step=" in line for line in said())
