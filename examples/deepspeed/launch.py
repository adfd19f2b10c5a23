"""Entry point without training code, which runs DeepSpeed's launcher on this node of the job."""

import json
import os
import sys
from pathlib import Path

hosts = sorted(json.loads(os.environ["SM_HOSTS"]))
Path("hostfile").write_text("".join(f"{host} slots=1\n" for host in hosts))
command = [
    "deepspeed", "--hostfile", "hostfile", "--no_ssh", "--no_local_rank",
    "--node_rank", str(hosts.index(os.environ["SM_CURRENT_HOST"])),
    "--master_addr", hosts[0], "--master_port", "29500",
    "train.py", *sys.argv[1:],
]  # fmt: skip
print(" ".join(command), flush=True)
os.execvp(command[0], command)
