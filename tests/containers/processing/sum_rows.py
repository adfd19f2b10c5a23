"""A Processing job's program: nodes sum their shares of the input, and the first adds them up."""

import json
import os
import socket
import sys
import time
from pathlib import Path

PROCESSING = Path("/opt/ml/processing")
RESOURCES = json.loads(Path("/opt/ml/config/resourceconfig.json").read_text())
JOB = json.loads(Path("/opt/ml/config/processingjobconfig.json").read_text())
HOSTS, HERE = RESOURCES["hosts"], RESOURCES["current_host"]
PORT = 7777


def main():
    """Sum this node's share, and on the first node write the total."""
    files = sorted((PROCESSING / "input" / "rows").glob("*.csv"))
    share = sum(int(line) for file in files for line in file.read_text().split())
    print(f"{HERE} has {', '.join(file.name for file in files)}: {share}", flush=True)
    assert os.environ["PROCESSING_JOB_NAME"] == JOB["ProcessingJobName"]
    is_first = HOSTS[0] == HERE
    if is_first and sys.argv[1:] == ["--fail"]:
        sys.exit(3)
    if not is_first:
        return send(share)
    total = share
    with socket.create_server(("", PORT)) as server:
        for _ in HOSTS[1:]:
            connection, _ = server.accept()
            total += int(connection.recv(100).decode())
    (PROCESSING / "output" / "sum" / "sum.txt").write_text(str(total))
    Path("/opt/ml/output/message").write_text(f"{len(HOSTS)} nodes: {total}")


def send(share):
    """Send this node's share to the first node."""
    for _ in range(100):
        try:
            with socket.create_connection((HOSTS[0], PORT), 10) as connection:
                connection.sendall(str(share).encode())
            return
        except OSError:  # the first node is not listening yet
            time.sleep(0.1)
    sys.exit("the first node does not listen")


main()
