"""Wrap the functions of this package as Prefect tasks with retries.

Only flows import this module, because importing Prefect takes two seconds. Commands that don't
run a flow call the functions directly.
"""

from __future__ import annotations

from nodesweep.aws.platform import PATIENT_TASK_OPTIONS, TASK_OPTIONS
from nodesweep.launch import registry
from nodesweep.tasks.dataset import files, validation
from nodesweep.tasks.dataset.remote import objects
from nodesweep.tasks.dataset.remote import validation as remote_validation
from nodesweep.tasks.image import bases, build, find, packages
from nodesweep.tasks.jobs import source, training_jobs
from nodesweep.tasks.processing import jobs as processing_jobs
from nodesweep.tasks.report import history, pricing, publish
from nodesweep.tasks.sweeps import folder, orphans, records, stopping
from nodesweep.tasks.task import as_task

check_platform = as_task("preflight-online", registry.check_platform, **TASK_OPTIONS)
look_up_prices = as_task("look-up-prices", pricing.current_prices, **TASK_OPTIONS)
announce_budget = as_task("announce-budget", publish.announce_budget, **TASK_OPTIONS)

prepare_store = as_task("make-sure-of-bucket", records.prepare_store, **TASK_OPTIONS)
read_sweep_record = as_task("read-sweep-record", records.read_sweep_record, **TASK_OPTIONS)
read_report_file = as_task("read-report-file", records.read_report_file, **TASK_OPTIONS)

validate_files = as_task("validate-dataset", validation.validate_files)
keep_data_docs = as_task("keep-data-docs", publish.keep_data_docs, **TASK_OPTIONS)
upload_dataset = as_task("upload-dataset", files.upload_dataset, **TASK_OPTIONS)
describe_remote_dataset = as_task(
    "describe-remote-dataset", objects.describe_remote_dataset, **TASK_OPTIONS
)
validate_remote = as_task(
    "validate-remote-dataset", remote_validation.validate_remote, **TASK_OPTIONS
)
submit_validation_job = as_task(
    "submit-validation-job", processing_jobs.submit_validation_job, **PATIENT_TASK_OPTIONS
)
read_verdict = as_task("read-verdict", processing_jobs.read_verdict, **TASK_OPTIONS)

pin_base_images = as_task("pin-base-images", bases.pin_base_images, **TASK_OPTIONS)
pin_container = as_task("pin-container", bases.pin_container, **TASK_OPTIONS)
find_push_problem = as_task("find-repository", packages.find_push_problem, **TASK_OPTIONS)
find_image = as_task("find-image", find.find_image, **TASK_OPTIONS)
start_image_build = as_task("start-image-build", build.start_image_build, **TASK_OPTIONS)
wait_for_image_build = as_task("wait-for-image-build", build.wait_for_image_build, **TASK_OPTIONS)
upload_source = as_task("upload-source", source.upload_source, **TASK_OPTIONS)

describe_training_jobs = as_task(
    "describe-training-jobs", training_jobs.describe_training_jobs, **TASK_OPTIONS
)
list_training_jobs = as_task("list-training-jobs", training_jobs.list_training_jobs, **TASK_OPTIONS)
mark_code_proven = as_task("mark-code-proven", source.mark_code_proven, **TASK_OPTIONS)

stop_training_jobs = as_task("stop-training-jobs", stopping.stop_training_jobs, **TASK_OPTIONS)
stop_processing_jobs = as_task(
    "stop-processing-jobs", stopping.stop_processing_jobs, **TASK_OPTIONS
)
stop_sweep_jobs = as_task("stop-sweep-jobs", stopping.stop_sweep_jobs_now, **TASK_OPTIONS)
release_warm_pools = as_task("release-warm-pools", stopping.release_pools_now, **TASK_OPTIONS)
find_orphans = as_task("find-orphans", orphans.find_orphans, **TASK_OPTIONS)
find_validation_orphans = as_task(
    "find-validation-orphans", orphans.find_validation_orphans, **TASK_OPTIONS
)

write_report = as_task("write-report", folder.write_files, **TASK_OPTIONS)
put_objects = as_task("put-objects", records.put_objects, **PATIENT_TASK_OPTIONS)
read_history_of = as_task("read-history", history.read_history_files, **TASK_OPTIONS)
append_history = as_task("append-history", history.put_history, **TASK_OPTIONS)
publish_trend = as_task("publish-trend", publish.publish_trend, **TASK_OPTIONS)
announce_regression = as_task("announce-regression", publish.announce_regression, **TASK_OPTIONS)
