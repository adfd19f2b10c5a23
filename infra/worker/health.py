"""Whether a service of this container answers: python infra/worker/health.py PORT PATH.
The image's health check.

Imports nothing of the house: it runs every few seconds. No proxy is asked, whatever the environment
names.
"""

import sys
from http.client import HTTPConnection, HTTPException

_ANSWER_SECONDS = 5


def problem(port: int, path: str) -> str | None:
    """What is wrong, or None where the answer is 200."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return (
            None
            if answer.status == 200
            else f"{path} on port {port}: {answer.status} {answer.reason}"
        )
    except (OSError, HTTPException) as error:
        return f"{path} on port {port}: {error}"
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(problem(int(sys.argv[1]), sys.argv[2]))
