"""docs/local-platform-operations.md, made of the platform's own services and of moto's classes:
`python -m infra.local.operations > docs/local-platform-operations.md`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from infra.local.api.moto_additions import ADDITIONS
from infra.local.api.moto_operations import operations_of_moto
from infra.local.api.protocol import JsonService
from infra.local.api.validation import service_model
from infra.local.builds.service import Builds
from infra.local.sagemaker.metric_series import metrics_service
from infra.local.sagemaker.service import sagemaker_service

_HEAD = """\
# The local platform, operation by operation

Made by `python -m infra.local.operations > docs/local-platform-operations.md`; edit the services,
not this file. The operations are those of botocore {botocore}'s models; moto is {moto}. A test asks
a running platform for some of each kind.

- **Own**: really done, as [infra/local/README.md](../infra/local/README.md) says.
- **moto's**: answered by [moto](https://docs.getmoto.org)'s model of the service. It keeps what it
  is given, and does nothing else.
- **Refused**: moto would answer from what it knows, which is nothing of the platform's jobs and
  builds; so the platform says that it does not model the call.
- **Not modelled**: the service's error for an operation that it doesn't have, in the client's
  protocol.

Services that are not listed are moto's, as far as moto has them.

"""
_WIDTH = 100


@dataclass(frozen=True)
class Service:
    """A service that clients of training jobs call."""

    title: str
    name: str
    """The name of the service as botocore has it."""
    only: str = ""
    """What the operations that count begin with."""


SERVICES = (
    Service("SageMaker", "sagemaker"),
    Service("SageMaker metrics", "sagemaker-metrics"),
    Service("CodeBuild", "codebuild"),
    Service("S3", "s3"),
    Service("ECR", "ecr"),
    Service("IAM", "iam"),
    Service("STS", "sts"),
    Service("CloudWatch", "cloudwatch"),
    Service("CloudWatch Logs", "logs"),
    Service("Resource Groups Tagging", "resourcegroupstaggingapi"),
    Service("EFS", "efs"),
    Service("EC2, Describe… only", "ec2", only="Describe"),
    Service("Service Quotas", "service-quotas"),
    Service("Price List", "pricing"),
)


@dataclass(frozen=True)
class Operations:
    """What becomes of the operations of one service. Every operation is in one of the first four
    kinds.
    """

    service: Service
    own: Sequence[str]
    refused: Sequence[str]
    moto: Sequence[str]
    not_modelled: Sequence[str]
    shared: Sequence[str]
    """Own ones that moto answers for resources that are no jobs of ours."""
    added: Sequence[str]
    """Those of moto's that the platform adds to moto, or mends."""

    @cached_property
    def row(self) -> str:
        kinds = (self.own, self.moto, self.refused, self.not_modelled)
        return _row(self.service.title, *(str(len(names)) for names in kinds))


def operations(service: Service) -> Operations:
    """Of one service, by botocore's model of it."""
    model = service_model(service.name)
    prefixes = (model.metadata.get("targetPrefix"), service.name)
    own = next((one for one in _own_services() if one.target_prefix in prefixes), None)
    actions = frozenset(own.actions) if own else frozenset()
    refused = own.refused if own else frozenset()
    names = [name for name in model.operation_names if name.startswith(service.only)]
    added = {addition.operation for addition in ADDITIONS if addition.service == service.name}
    of_moto = (operations_of_moto(service.name) | added) - actions - refused
    return Operations(
        service,
        own=[name for name in names if name in actions],
        refused=[name for name in names if name in refused],
        moto=[name for name in names if name in of_moto],
        not_modelled=[name for name in names if name not in of_moto | actions | refused],
        shared=[name for name in names if own and name in actions and not own.claims(name, {})],
        added=[name for name in names if name in added],
    )


def operations_document() -> str:
    """The whole file as Markdown."""
    all_of_them = [operations(service) for service in SERVICES]
    head = _HEAD.format(botocore=version("botocore"), moto=version("moto"))
    titles = _row("service", "own", "moto's", "refused", "not modelled")
    table = [titles, "|---" * 5 + "|", *(one.row for one in all_of_them)]
    sections = [line for one in all_of_them for line in _section(one)]
    return head + "\n".join([*table, *sections]) + "\n"


def _own_services() -> list[JsonService]:
    """As every platform has them. They are looked at, not called: their jobs, series and clients
    are left out.
    """
    nothing: Any = None
    builds = Builds(nothing, nothing, nothing)
    return [
        sagemaker_service(nothing, nothing, nothing),
        metrics_service(nothing, nothing),
        builds.service(),
    ]


def _section(found: Operations) -> Iterator[str]:
    yield from ("", f"## {found.service.title}", "")
    for title, names in (
        ("Own", found.own),
        ("Own where they are about training and Processing jobs, else moto's", found.shared),
        ("Refused", found.refused),
        ("moto's", found.moto),
        ("Of moto's, added or mended here", found.added),
    ):
        if names:
            yield _item(f"**{title}**: {', '.join(names)}.")
    if not (found.own or found.moto):
        yield _item("Nothing: moto doesn't have the service.")


def _item(text: str) -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(operations_document(), end="")
