"""Runs a Processing job: downloads its inputs, runs its nodes and uploads its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from sagemaker_emulator.interfaces import Node, RunResult
from sagemaker_emulator.jobs.artifacts import upload_folder
from sagemaker_emulator.jobs.downloads import DownloadInterrupted, fill_folders
from sagemaker_emulator.jobs.endings import ClientFault, Ending
from sagemaker_emulator.jobs.execution import JobExecution
from sagemaker_emulator.jobs.folder_sync import FolderSync, SyncedFolder
from sagemaker_emulator.node_tree import open_file
from sagemaker_emulator.processing.files import Output, input_folders, output_folders
from sagemaker_emulator.processing.record import RUNTIME_EXCEEDED, ProcessingJob
from sagemaker_emulator.s3_objects import S3Location

LOG_GROUP = "/aws/sagemaker/ProcessingJobs"
EXIT_MESSAGE_BYTES = 1024


class ExitMessageError(ClientFault):
    """The output/message of a node is not UTF-8."""


class ProcessingExecution(JobExecution[ProcessingJob]):
    """Runs a Processing job in the calling thread until it ends."""

    group = LOG_GROUP

    def _run_in_turn(self) -> Ending:
        nodes = self._prepare()
        fill_folders(self._s3, input_folders(self._job.request), nodes, self._stop)
        if self._stop.is_set():
            raise DownloadInterrupted
        outputs = output_folders(self._job.request)
        watch = self._watch()
        with self._continuous_outputs(outputs, nodes):
            result = self._run_nodes(nodes, watch, self._job.max_runtime_seconds)
        self._keep_exit_message(nodes)
        if watch.struck is not None and result.stopped and not self._stop.is_set():
            return watch.struck.ending()
        ending = _ending(result)
        if ending.status == "Completed":
            for output in outputs:
                if not output.is_continuous:
                    upload_folder(self._s3, nodes, output.folder, output.uri)
        return ending

    def _continuous_outputs(self, outputs: Sequence[Output], nodes: Sequence[Node]) -> FolderSync:
        """Return a sync that uploads changes while the nodes run, and a last time on exit."""
        folders = [
            SyncedFolder(output.folder, S3Location.parse(f"{output.uri.rstrip('/')}/"), False)
            for output in outputs
            if output.is_continuous
        ]
        return FolderSync(self._s3, folders, nodes)

    def _keep_exit_message(self, nodes: Sequence[Node]) -> None:
        if message := exit_message(nodes):
            self._change(lambda job: setattr(job, "exit_message", message))


def exit_message(nodes: Sequence[Node]) -> str | None:
    """Return the first KiB of the nodes' joined output/message files, or None if there are none.

    Raises:
        ExitMessageError: If the text is not UTF-8.
    """
    texts = []
    for node in nodes:
        try:
            with open_file(node.opt_ml, "output/message") as file:
                # Read one more byte to detect whether the text is cut, possibly within a character.
                texts.append(file.read(EXIT_MESSAGE_BYTES + 1))
        except OSError:
            continue
    cut = b"".join(texts)[:EXIT_MESSAGE_BYTES]
    whole = len(b"".join(texts)) <= EXIT_MESSAGE_BYTES
    try:
        return cut.decode("utf-8", "strict" if whole else "ignore") or None
    except UnicodeDecodeError as error:
        raise ExitMessageError(
            f"The exit message in /opt/ml/output/message is not UTF-8 encoded: {error}"
        ) from error


def _ending(result: RunResult) -> Ending:
    if result.failed_host is not None and not result.stopped and not result.timed_out:
        return Ending("Failed", _failure(result))
    if result.timed_out:
        return RUNTIME_EXCEEDED
    return Ending("Stopped" if result.stopped else "Completed")


def _failure(result: RunResult) -> str | None:
    """Return the failure reason, worded as for training jobs.

    Processing jobs need not write output/failure, since they also have output/message.
    """
    culprit = next(end for end in result.exits if end.host == result.failed_host)
    if not (result.failure_reason or "").startswith("AlgorithmError"):
        return result.failure_reason
    host = f"{culprit.host}: " if len(result.exits) > 1 else ""
    text = culprit.failure or "See job logs for more information"
    code = culprit.exit_code if culprit.exit_code >= 0 else 128 - culprit.exit_code
    return f"AlgorithmError: {host}{text}, exit code: {code}"
