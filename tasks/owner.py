"""Who runs a sweep: an object in the bucket, written anew every minute, tells a running sweep from one left behind."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from configs.models import PlatformConfig
from scaling import names
from tasks.errors import best_effort, error_code
from tasks.platform import aws_client
from tasks.storage import put_bytes

logger = logging.getLogger("nodesweep.owner")
BEAT_SECONDS = 60.0


@dataclass(frozen=True)
class OwnerSign:
    """The last sign of a sweep's owner, and the platform's own time when it was read."""

    written_at: datetime
    read_at: datetime
    left_running: bool

    @property
    def age_seconds(self) -> float:
        return (self.read_at - self.written_at).total_seconds()


@contextmanager
def owned(platform: PlatformConfig, sweep: str) -> Iterator[None]:
    """Inside, the bucket says every minute that somebody runs this sweep; a beat that fails is only a warning."""
    over = threading.Event()
    s3 = aws_client("s3", platform)

    def beat() -> None:
        while True:
            with best_effort(f"the sign that {sweep} is being run can't be written"):
                _write(s3, platform, sweep, left_running=False)
            if over.wait(BEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name=f"owner-{sweep}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def leave_running(platform: PlatformConfig, sweep: str) -> None:
    """The sweep's jobs run on without anybody, on purpose: the reaper spares them."""
    _write(aws_client("s3", platform), platform, sweep, left_running=True)


def read_owner_sign(s3: Any, platform: PlatformConfig, sweep: str) -> OwnerSign | None:
    """The last sign, dated by the platform's clock on both ends; None where there is none."""
    try:
        answer = s3.get_object(Bucket=platform.bucket, Key=names.owner_key(platform.prefix, sweep))
    except s3.exceptions.ClientError as error:
        if error_code(error) in ("NoSuchKey", "NoSuchBucket"):
            return None
        raise
    read_at = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    left_running = bool(json.loads(answer["Body"].read()).get("left_running"))
    return OwnerSign(answer["LastModified"], read_at, left_running)


def _write(s3: Any, platform: PlatformConfig, sweep: str, left_running: bool) -> None:
    body = names.pretty_json({"sweep_id": sweep, "left_running": left_running})
    put_bytes(s3, platform.bucket, names.owner_key(platform.prefix, sweep), body)
