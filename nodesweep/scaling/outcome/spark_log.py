"""Find the lines of a Spark job's log that its program wrote.

Spark logs through log4j, "26/11/25 08:00:00 WARN TaskSetManager: Lost task 3.0 …", and writes a
dozen such lines after the last line of the program. AWS's smspark-submit uses Python's logging,
"11-25 08:00 smspark.cli INFO …". Errors of Spark are kept, because nothing else reports a lost
executor. Of a Java exception, the text is kept but not the dozens of frames.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from nodesweep.scaling.job import LogLine

LINES_SHOWN = 10
_FRAMEWORK = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?:TRACE|DEBUG|INFO|WARN) "
    r"|\d\d-\d\d \d\d:\d\d smspark\S* +(?:DEBUG|INFO|WARNING) "
    r"|\s+at [\w.$/<>-]+\(|\s+\.\.\. \d+ more"
)


def last_own_lines(log: Iterable[LogLine], most: int = LINES_SHOWN) -> list[str]:
    """Return the last lines of the program on all nodes in time order: "algo-1: ValueError: …"."""
    last: deque[str] = deque(maxlen=most)
    for line in log:
        if line.text.strip() and not _FRAMEWORK.match(line.text):
            last.append(f"{line.host}: {line.text}")
    return list(last)
