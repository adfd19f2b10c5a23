"""docs/preflight.md, made of the two tables of rules:
`python -m tasks.preflight.document > docs/preflight.md`.
"""

from __future__ import annotations

import json

from scaling.rules.offline import OFFLINE_RULES
from tasks.preflight.ask import ACCOUNT_RULES
from tasks.preflight.rule import AccountRule

_HEAD = """\
# Preflight: what is checked before anything is spent

What does nodesweep refuse before it starts a job, and what do you do then? This page is made by
`python -m tasks.preflight.document > docs/preflight.md`. Edit the rules, not this file.

    nodesweep plan CONFIG             the offline rules: no call, no credentials
    nodesweep plan CONFIG --online    those, then the account: quotas, network, role, bucket,
                                      image, current price

`nodesweep run` begins with the same rules. Offline rules come first. Where one is broken, nothing
is called. Every problem is named at once (exit code 3), with its field and what to do. Hints and
notices refuse nothing. A sweep that is refused has started no job and sent no data.
"""
_ACCOUNT = """\
## Online rules

They make read calls only, side by side, a few seconds in all. Where the credentials may not make a
call, or the endpoint has no such service, the rule is skipped with a notice that names the action.
An answer that is not AWS's, such as a page or a redirect, is a problem of `platform.endpoint_url`,
and so is S3 that gives no whole answer within about a minute, however its bytes come. Without an
endpoint in the config, the problem names the service and region instead.
Missing or expired credentials end the command (exit code 1).
"""
_PRICE = """\
**The current price** is asked for, too: the Price List's rate for training on the type in the
region (`pricing:GetProducts`). Where none is found, a notice says so and the catalogue's is used.
`sweep.budget_usd` is checked again at the rate found. That rate is the one in the plan's cost bound
and in the report, with the source "AWS Price List Query API" and the day it was read. It is kept
for 7 days in `$XDG_CACHE_HOME/nodesweep/prices.json` (`~/.cache/nodesweep/prices.json`).

**An emulated node** (`ml.local.*`) draws on no quota, joins no VPC, assumes no role and has no
price. Only bucket, image and repository are asked for, and a notice says so.

**The simulation of the role** covers what the developer guide lists for CreateTrainingJob:

- the dataset, own code and S3 channels: `s3:GetObject`;
- the jobs' output below `platform.prefix`: `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`
  (`s3:prefix`);
- log streams in `/aws/sagemaker/TrainingJobs`;
- metrics: `cloudwatch:PutMetricData` (`cloudwatch:namespace`);
- the image: `ecr:GetAuthorizationToken`, and on its repository `ecr:BatchGetImage` and
  `ecr:GetDownloadUrlForLayer`. It is the repository of the image that the jobs run: with a layer
  of packages on `image.uri` that is `image.repository`;
- in a VPC, the network interfaces.

### IAM actions of whoever runs the preflight
"""
_OFFLINE = """\
All of them read. `s3:GetBucketPolicy` and `ecr:GetRepositoryPolicy` are used only where the
role's own policies don't allow something.

## Offline rules

They look at the config, the catalogue, the plan, and the files on this machine that image and
code are made of.
"""
_TAIL = """\
**"The image"** of these rules is an AWS container known by its name: `image.uri` in AWS's account,
or `image.base_image` and `image.framework` under the shipped program with `requirements-on-dlc`.
Where you build more on a container, the same sentences are hints. Of an image with another name
nothing is assumed. Where each limit was read stands at its rule, in
`scaling/rules/distribution/containers.py` and `program.py`. None was seen on AWS.

**A fact that the catalogue does not hold** is null. A hint names what is not checked for it, such
as EFA on `ml.p2.*` and the NeuronCores of `ml.trn2.48xlarge`, which the job itself groups.

**The catalogue** `configs/instance_types.json` is made by `python -m configs.make_instance_types`.
Its sources are botocore (which types there are), moto (EC2's recorded answers) and sagemaker-core
(GPUs of retired types). Prices, emulated types and facts from elsewhere are kept in
`configs/instances.yaml`, each with its source and day.

**Elsewhere**: [distribution.md](distribution.md) has the kinds of distribution. Patterns and bounds
of single fields are the config's own, and so are directories that are not there (exit code 2):
[config.md](config.md).
"""


def preflight_document() -> str:
    """The whole file as Markdown."""
    asked = [
        _row(rule.name, f"{rule.asks} ({_actions(rule)})", rule.refuses, rule.remedy, rule.says)
        for rule in ACCOUNT_RULES
    ]
    looked = [_row(rule.name, rule.refuses, rule.remedy, rule.says) for rule in OFFLINE_RULES]
    return "\n".join(
        (
            _HEAD,
            *(
                _ACCOUNT,
                _row("rule", "what it asks (IAM action)", "problem", "what to do", "notice"),
                "|---" * 5 + "|",
            ),
            *(*asked, "", _PRICE, _policy(), ""),
            *(
                _OFFLINE,
                _row("about", "problem", "what to do", "hint"),
                "|---" * 4 + "|",
                *looked,
                "",
                _TAIL.rstrip(),
            ),
            "",
        )
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _actions(rule: AccountRule[object]) -> str:
    """The action that the call begins with, and those that it may need beside it."""
    return ", ".join(f"`{action}`" for action in (rule.action, *rule.more_actions))


def _policy() -> str:
    """The statement that allows every action of the rules and of the price, indented as code."""
    named = dict.fromkeys(
        action for rule in ACCOUNT_RULES for action in (rule.action, *rule.more_actions)
    )
    statement = {"Effect": "Allow", "Action": [*named, "pricing:GetProducts"], "Resource": "*"}
    return "\n".join(f"    {line}" for line in json.dumps(statement, indent=2).splitlines())


if __name__ == "__main__":
    print(preflight_document(), end="")
