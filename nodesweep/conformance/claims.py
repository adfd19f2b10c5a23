"""Statements of the documentation about behavior not yet seen on AWS, and the checks for them.

tests/docs/test_claims.py reads the pages; it fails if a sentence has no row here, or if a row
has no sentence.
"""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """A sentence of a page, on one line, and the ids of its checks."""

    page: str
    text: str
    checks: tuple[str, ...]


_JOB = ("one-node-job", "two-node-job")
_OF_ONE_NODE = ("one-node-job", "adoption", "phases", "billed-seconds", "log", "metrics")
_GPU = ("gpu-nccl",)
_KIND = ("two-node-job", "gpu-nccl")
"""Checks of a distribution kind, to be run with a config of that kind."""

CLAIMS: tuple[Claim, ...] = (
    Claim("README.md", "Nothing has run on AWS or on GPUs yet", (*_JOB, *_GPU)),
    Claim(
        "README.md",
        "requests and error handling follow the API's model and documentation",
        (
            "one-node-job",
            "adoption",
            "phases",
            "billed-seconds",
            "log",
            "metrics",
            "stop",
            "cancel",
        ),
    ),
    Claim("CHANGELOG.md", "Nothing in it has run on AWS yet", _JOB),
    Claim("docs/index.md", "Nothing has run on AWS or on GPUs yet", (*_JOB, *_GPU)),
    Claim("docs/method.md", "with CUDA events (never run on a GPU)", _GPU),
    Claim("infra/image/README.md", "by CUDA events (never run on a GPU)", _GPU),
    Claim(
        "docs/aws.md",
        "These steps have been run against the local platform, but [not on AWS yet]",
        ("credentials", "stack", "role", "bucket", "image-build", *_JOB),
    ),
    Claim(
        "docs/aws.md",
        "The local platform does not create the CodeBuild project, the bucket and queue policies,"
        " the outbound security group rule, the budget or the file system.",
        ("stack",),
    ),
    Claim("docs/aws.md", "These are only checked statically", ("stack",)),
    Claim(
        "docs/aws.md",
        "**Permissions** are evaluated as AWS documents them, but not enforced.",
        ("permissions", "one-node-job"),
    ),
    Claim(
        "docs/aws.md",
        "Two claims rely on the documentation alone: CodeBuild uses the project's buildspec for a"
        " context from S3",
        ("image-build",),
    ),
    Claim(
        "docs/aws.md",
        "a condition on `codebuild:source.buildspec` covers `buildspecOverride`",
        ("other-buildspec",),
    ),
    Claim(
        "docs/aws.md",
        "**Quotas, prices and images in other accounts** are not modeled",
        ("quota", "price", "base-image", "cost-figures"),
    ),
    Claim(
        "docs/distribution.md",
        "Nothing has run on AWS, a GPU, a NeuronCore or in an AWS container",
        (*_JOB, *_GPU),
    ),
    Claim("docs/distribution.md", "SMDDP's AllGather (smddp: true)", _KIND),
    Claim("docs/distribution.md", "smddprun; the runs over gloo are without SMDDP", _KIND),
    Claim("docs/distribution.md", "SMDDP itself and smddprun", _KIND),
    Claim("docs/distribution.md", "the library and smddpmprun", _KIND),
    Claim("docs/distribution.md", "torch.sagemaker; its use follows AWS's documentation", _KIND),
    Claim("docs/distribution.md", "a server; the launch is the same as for kind none", _KIND),
    Claim("docs/distribution.md", "torch_xla and Neuron", ("two-node-job",)),
    Claim("docs/distribution.md", "Horovod; the launch is the same as for kind mpi", _KIND),
    Claim(
        "nodesweep/launch/sagemaker/README.md",
        "It was tested on the local platform only, not on AWS.",
        ("batch-queue",),
    ),
    Claim("docs/own-code.md", "GPUs are untested", _GPU),
    Claim("docs/production.md", "This rule has not been tested on AWS", ("job-events",)),
    Claim(
        "docs/validation.md", "It [has never run] in AWS's image, which uses YARN.", ("processing",)
    ),
    Claim(
        "infra/image_spark/README.md",
        "Never ran: the image itself, Amazon's changes to Spark, YARN, v1.4. Known from its sources"
        " only",
        ("processing",),
    ),
    Claim(
        "infra/image_spark/README.md",
        "Whether that suffices for big files is untested on YARN",
        ("processing",),
    ),
)


def sentences_of(check: str) -> list[str]:
    """Return the sentences that a check verifies, each with its page."""
    return [f"{claim.page}: {claim.text}" for claim in CLAIMS if check in claim.checks]
