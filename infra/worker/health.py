"""Health check of the image: python infra/worker/health.py PORT PATH.

Standard library only, because it runs every few seconds. Proxy variables are ignored.
"""

import sys
from http.client import HTTPConnection, HTTPException

_ANSWER_SECONDS = 5


def problem(port: int, path: str) -> str | None:
    """Return the reason a local service is unhealthy, or None if it returns 200."""
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
