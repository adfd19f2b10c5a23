"""Entry point without training code, which runs `accelerate launch` on this node of the job."""

import json
import os
import sys

hosts = sorted(json.loads(os.environ["SM_HOSTS"]))
nodes = str(len(hosts))
command = [
    "accelerate", "launch", "--num_machines", nodes, "--num_processes", nodes,
    "--machine_rank", str(hosts.index(os.environ["SM_CURRENT_HOST"])),
    "--main_process_ip", hosts[0], "--main_process_port", "29500",
    "--mixed_precision", "no", "--dynamo_backend", "no",
]  # fmt: skip
if len(hosts) > 1:
    # With this option accelerate starts torchrun, even without GPUs; without it, each node would
    # train alone.
    command.append("--multi_gpu")
command += ["train.py", *sys.argv[1:]]
print(" ".join(command), flush=True)
os.execvp(command[0], command)
