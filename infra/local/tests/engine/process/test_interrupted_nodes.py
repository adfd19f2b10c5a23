"""A spot interruption of real processes through the API: SIGTERM, the last checkpoint in S3, and a
restart from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from infra.local.tests.engine.engine_bench import HANG_SECONDS, TIMES, write_image, write_train
from infra.local.tests.platform_client import client, phases, resources, run_job
from sagemaker_emulator.engine.process.engine import ProcessEngine
from sagemaker_emulator.server.backends import Backend, with_real_nodes
from sagemaker_emulator.server.contract import ServerConfig
from sagemaker_emulator.server.serving import running

PROGRAM = """
config = json.loads((ml / "input/config/checkpointconfig.json").read_text())
last = pathlib.Path(config["LocalPath"]) / "last.ckpt"
step = int(last.read_text()) if last.exists() else 0

def save(*_):
    if host == "algo-1":
        last.write_text(str(step))
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
both = pathlib.Path({both!r})
(both / host).touch()
while step == 0 and len(list(both.iterdir())) < 2: time.sleep(0.01)  # who can't save can't end
while step < 3:
    step += 1
    print(host, "step", step)
    if step == 2:
        time.sleep(600)
(ml / "model" / "model.bin").write_text(str(step))
"""


def test_interrupted_two_node_job_goes_on_where_it_was(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image")
    both = tmp_path / "both"
    both.mkdir()
    write_train(image, PROGRAM.format(both=str(both)))
    times = replace(TIMES, stop_term_seconds=HANG_SECONDS)
    images = SimpleNamespace(resolve=lambda uri: image, images=lambda: [])
    plan = tmp_path / "faults.yaml"
    plan.write_text(
        'faults:\n  - {fault: spot_interruption, jobs: "resumes", at_line: "^algo-1 step 2$"}\n'
    )
    config = ServerConfig(0, tmp_path / "state", faults_file=plan)
    engines: list[ProcessEngine] = []

    def make(config: ServerConfig, endpoint: str) -> Backend:
        engines.append(ProcessEngine(config.state_dir / "engine", images, endpoint, times=times))  # type: ignore[arg-type]
        return with_real_nodes(config, engines[0], images)  # type: ignore[arg-type]

    with running(config, make) as endpoint:
        platform = SimpleNamespace(
            sagemaker=client(endpoint, "sagemaker"), s3=client(endpoint, "s3")
        )
        platform.s3.create_bucket(Bucket="results")
        job = run_job(
            platform,
            "resumes",
            ResourceConfig=resources(2),
            EnableManagedSpotTraining=True,
            StoppingCondition={"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 300},
            CheckpointConfig={"S3Uri": "s3://results/checkpoints"},
        )
        assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
        assert phases(job).count("Training") == 2
        assert "Interrupted" in phases(job)
        assert (
            platform.s3.get_object(Bucket="results", Key="checkpoints/last.ckpt")["Body"].read()
            == b"2"
        )
        assert platform.s3.head_object(Bucket="results", Key="jobs/resumes/output/model.tar.gz")
    engines[0].close()
