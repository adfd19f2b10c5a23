"""Generate docs/preflight.md from the two tables of rules.

`python -m nodesweep.launch.sagemaker.preflight.document > docs/preflight.md`
"""

from __future__ import annotations

import json

from nodesweep.launch.sagemaker.preflight.capacity import ACTIONS
from nodesweep.launch.sagemaker.preflight.online import ACCOUNT_RULES
from nodesweep.launch.sagemaker.preflight.rule import AccountRule
from nodesweep.scaling.rules.offline import OFFLINE_RULES

_HEAD = """\
# Preflight rules

This page lists the checks that nodesweep makes before it starts a job or sends data, and how to
solve each problem. To regenerate it, run
`python -m nodesweep.launch.sagemaker.preflight.document > docs/preflight.md`.

    nodesweep plan CONFIG             offline rules, which need no network and no credentials
    nodesweep plan CONFIG --online    also the online rules (quotas, network, role, bucket, image),
                                      the current price, and capacity options

`nodesweep run` applies the offline rules, then the online ones. It reports all problems together,
each with its field and remedy (exit code 3). Hints and notices do not block a run.
"""
_ACCOUNT = """\
## Online rules

These rules make read-only calls in parallel. If the credentials do not allow a call, or the
endpoint lacks the service, the rule is skipped with a notice that names the action. An invalid
response (such as a web page or a redirect), or no response from S3 within about a minute, is a
problem of `platform.endpoint_url` or, if that is not set, of the service in the region. Missing or
expired credentials end the command (exit code 1).
"""
_PRICE = """\
**The current price** is read from the Price List (`pricing:GetProducts`) and used for
`sweep.budget_usd`, the cost bound and the report, which states its source and date. It is cached
for 7 days in `$XDG_CACHE_HOME/nodesweep/prices.json` (`~/.cache/nodesweep/prices.json`). If it is
unavailable, a notice says so, and the newest known price is used.

**All prices.** `nodesweep prices refresh` reads on-demand training prices from AWS's bulk Price
List into `price_list.json.gz` in the same folder, without credentials. It skips types that are
listed with more than one rate. `--region` limits it to one region, `--from` reads a downloaded
file, and `--output` names another table to update. Each region is written once it has been read and
checked. HTML, truncated files, editions older than the table or than 90 days, and lists that can't
be read in three attempts are rejected; the table then keeps its prices for the region (exit code
1). The plan and the report mark prices older than 90 days. The command has not yet been run against
the real Price List.

**Capacity options.** After the plan, `--online` lists for each instance type

- on demand: the quota, the price, and the maximum cost of the sweep and of one run on each node
  count;
- managed spot: the quota (`servicequotas:ListServiceQuotas`). Since SageMaker publishes no spot
  prices and reports savings only after a job, the EC2 spot price of the last day
  (`ec2:DescribeSpotPriceHistory`) is shown for reference, but not used for costs;
- training plans: the current offerings for the largest job and the maximum duration of the sweep
  (`sagemaker:SearchTrainingPlanOfferings`), with start, duration and upfront fee. Plans have 1, 2,
  4 … 64 instances for a number of full days. Nothing is purchased.

If a query fails, the reason is shown instead.

**Emulated nodes** (`ml.local.*`) have no quota, VPC, role or price, so only the bucket, the image
and the repository are checked.

**The role's permissions** are simulated for all permissions that the developer guide lists for
CreateTrainingJob:

- the dataset, your code and S3 channels: `s3:GetObject`;
- the jobs' output below `platform.prefix`: `s3:GetObject`, `s3:PutObject` and `s3:ListBucket`
  (`s3:prefix`);
- log streams in `/aws/sagemaker/TrainingJobs`;
- metrics: `cloudwatch:PutMetricData` (`cloudwatch:namespace`);
- the image: `ecr:GetAuthorizationToken`, and on its repository `ecr:BatchGetImage` and
  `ecr:GetDownloadUrlForLayer` (the repository is `image.repository` if a layer of packages is built
  on `image.uri`);
- in a VPC, the network interfaces.

### IAM actions that the preflight needs
"""
_OFFLINE = """\
`s3:GetBucketPolicy` and `ecr:GetRepositoryPolicy` are only used if the role's own policies don't
allow an action.

## Offline rules

These rules check the config, the catalogue, the plan, and the local files of the image and the
code.
"""
_TAIL = """\
**AWS containers.** The rules on containers apply to AWS containers, which they recognize by name:
`image.uri` in AWS's account, or `image.base_image` and `image.framework` under the shipped program
with `requirements-on-dlc`. If you extend such a container, the rules only give hints. They assume
nothing about other images. The source of each limit is next to its rule in `containers.py` and
`program.py` of `nodesweep/scaling/rules/distribution/`. No limit has been verified on AWS.

**Unknown facts** are null in the catalogue. A hint names the checks that are skipped as a result,
such as those of EFA on `ml.p2.*` and of the NeuronCores of `ml.trn2.48xlarge`.

**The catalogue** `configs/instance_types.json` is generated by
`python -m nodesweep.configs.make_instance_types` from botocore, moto's recorded EC2 responses and
sagemaker-core. `configs/instances.yaml` has prices, emulated types and other facts, each with
source and date.
"""


def preflight_document() -> str:
    """Return the whole page as Markdown."""
    online_rows = [
        _row(rule.name, f"{rule.queries} ({_actions(rule)})", rule.refuses, rule.remedy, rule.says)
        for rule in ACCOUNT_RULES
    ]
    offline_rows = [_row(rule.name, rule.refuses, rule.remedy, rule.says) for rule in OFFLINE_RULES]
    return "\n".join(
        (
            _HEAD,
            *(
                _ACCOUNT,
                _row("rule", "what it queries (IAM action)", "problem", "what to do", "notice"),
                "|---" * 5 + "|",
            ),
            *(*online_rows, "", _PRICE, _policy(), ""),
            *(
                _OFFLINE,
                _row("about", "problem", "what to do", "hint"),
                "|---" * 4 + "|",
                *offline_rows,
                "",
                _TAIL.rstrip(),
            ),
            "",
        )
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _actions(rule: AccountRule[object]) -> str:
    """Return the action of the rule's first call, and further actions that it may need."""
    return ", ".join(f"`{action}`" for action in (rule.action, *rule.more_actions))


def _policy() -> str:
    """Return the IAM statement that allows all queries of `plan --online`, as a code block."""
    named = dict.fromkeys(
        action for rule in ACCOUNT_RULES for action in (rule.action, *rule.more_actions)
    )
    statement = {
        "Effect": "Allow",
        "Action": [*dict.fromkeys((*named, *ACTIONS, "pricing:GetProducts"))],
        "Resource": "*",
    }
    return "\n".join(f"    {line}" for line in json.dumps(statement, indent=2).splitlines())


if __name__ == "__main__":
    print(preflight_document(), end="")
