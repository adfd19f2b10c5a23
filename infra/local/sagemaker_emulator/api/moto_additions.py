"""Operations and checks that moto lacks but clients of training jobs need.

`moto_patches` adds them to moto's classes:

- iam: SimulatePrincipalPolicy, which the SageMaker SDK uses to check a role;
- logs: FilterLogEvents with logStreamNamePrefix and logGroupIdentifier, errors for missing streams
and for GetQueryResults of a missing query;
- sagemaker: errors for tags of missing resources;
- s3: errors for missing multipart uploads; checksums, ACLs and parts of completed uploads;
HeadObject of version "null" in an unversioned bucket, and an empty TagSet.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.iam.exceptions import MalformedPolicyDocument, NotFoundException
from moto.logs.exceptions import InvalidParameterException, ResourceNotFoundException
from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import FakeKey
from moto.sagemaker.exceptions import ValidationError

from sagemaker_emulator.api.checksums import checksum_of_parts
from sagemaker_emulator.api.policies import decision
from sagemaker_emulator.api.protocol import ApiError
from sagemaker_emulator.api.validation import RequestValidator

_NOT_OF_MOTO = ("CRC32C", "CRC64NVME")
_BOTH_OR_NONE = "Either logGroupName or logGroupIdentifier must be given, and not both."
_NO_STREAM = "The specified log stream does not exist."


def simulate_principal_policy(self: Any) -> ActionResult:
    """Evaluate the policies of a role or user for each action and resource, in a single page."""
    documents = _documents(self.backend, self._get_param("PolicySourceArn"))
    documents += [_policy_document(text) for text in self._get_param("PolicyInputList") or []]
    results = [
        {
            "EvalActionName": action,
            "EvalResourceName": resource,
            "EvalDecision": decision(documents, action, resource),
            "MatchedStatements": [],
            "MissingContextValues": [],
        }
        for action in self._get_param("ActionNames")
        for resource in self._get_param("ResourceArns") or ["*"]
    ]
    return ActionResult({"EvaluationResults": results, "IsTruncated": False})


def _policy_document(text: str) -> dict[str, Any]:
    """Parse a policy document.

    Raises:
        MalformedPolicyDocument: If the text is not a JSON object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedPolicyDocument(
            f"A policy of PolicyInputList is not valid JSON: {error}"
        ) from error
    if not isinstance(document, dict):
        raise MalformedPolicyDocument("A policy of PolicyInputList is not a JSON object.")
    return document


def _documents(backend: Any, arn: str) -> list[dict[str, Any]]:
    """Return the policy documents of a role or user.

    Raises:
        NotFoundException: If there is no such principal.
    """
    owner = next(
        (one for one in [*backend.get_roles(), *backend.users.values()] if one.arn == arn), None
    )
    if owner is None:
        raise NotFoundException(f"The principal {arn} cannot be found.")
    managed = [version for policy in owner.managed_policies.values() for version in policy.versions]
    texts = [
        *owner.policies.values(),
        *(version.document for version in managed if version.is_default),
    ]
    # moto stores inline policies from CloudFormation as dicts, as they are in the template.
    return [text if isinstance(text, dict) else json.loads(text) for text in texts]


def filtering_by_prefix(filter_log_events: Callable[[Any], str]) -> Callable[[Any], str]:
    def filtered(self: Any) -> str:
        names, prefix = self._get_param("logStreamNames"), self._get_param("logStreamNamePrefix")
        group = self.logs_backend.groups.get(self._get_param("logGroupName"))
        if names and prefix:
            raise InvalidParameterException(
                "Only one of logStreamNames and logStreamNamePrefix can be given."
            )
        if group is not None and names and not set(names) <= set(group.streams):
            raise ResourceNotFoundException(_NO_STREAM)
        if group is not None and prefix:
            found = [name for name in group.streams if name.startswith(prefix)]
            if not found:
                return json.dumps({"events": [], "searchedLogStreams": []})
            self.body = json.dumps({**json.loads(self.body), "logStreamNames": found})
        return filter_log_events(self)

    return filtered


def of_a_known_stream(get_log_events: Callable[[Any], str]) -> Callable[[Any], str]:
    def got(self: Any) -> str:
        group = self.logs_backend.groups.get(self._get_param("logGroupName"))
        if group is not None and self._get_param("logStreamName") not in group.streams:
            raise ResourceNotFoundException(_NO_STREAM)
        return get_log_events(self)

    return got


def of_a_named_group(operation: str, answer: Callable[[Any], str]) -> Callable[[Any], str]:
    """Resolve the log group of an operation by name or by logGroupIdentifier (name or ARN).

    Requests that violate the model of the service are refused.
    """

    def answered(self: Any) -> str:
        request = json.loads(self.body)
        try:
            RequestValidator("logs").check(operation, request)
        except ApiError as error:
            if error.code != "ValidationException":
                raise
            raise InvalidParameterException(error.message) from error  # CloudWatch Logs' code
        identifier = request.get("logGroupIdentifier")
        if (identifier is None) == (request.get("logGroupName") is None):
            raise InvalidParameterException(_BOTH_OR_NONE)
        if identifier is not None:
            named = [
                name
                for name, group in self.logs_backend.groups.items()
                if identifier in (name, group.arn.removesuffix(":*"))
            ]
            if not named:
                raise ResourceNotFoundException()
            self.body = json.dumps({**request, "logGroupName": named[0]})
        return answer(self)

    return answered


def of_a_known_query(results: Callable[[Any], str]) -> Callable[[Any], str]:
    def answered(self: Any) -> str:
        query_id = self._get_param("queryId")
        if query_id not in self.logs_backend.queries:
            raise ResourceNotFoundException(f"The query {query_id} does not exist.")
        return results(self)

    return answered


def of_a_known_resource(change_or_list: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Refuse a tag operation if the ARN is invalid or the resource does not exist."""

    def answered(self: Any) -> Any:
        try:
            found = self.sagemaker_backend._get_resource_from_arn(self._get_param("ResourceArn"))
        except (AttributeError, ValueError):  # not an ARN, or a resource type that moto lacks
            found = None
        if found is None:
            raise ValidationError("Requested resource not found.")
        found.tags = getattr(found, "tags", None) or []
        return change_or_list(self)

    return answered


def of_a_known_upload(answer: Callable[..., Any]) -> Callable[..., Any]:
    def answered(self: Any, bucket_name: str, multipart_id: str, *rest: Any, **more: Any) -> Any:
        if multipart_id not in self.get_bucket(bucket_name).multiparts:
            raise NoSuchUpload(upload_id=multipart_id)
        return answer(self, bucket_name, multipart_id, *rest, **more)

    return answered


def with_checksum_and_acl(complete: Callable[..., Any]) -> Callable[..., Any]:
    """Complete a multipart upload with the correct checksum, an ACL and only its own parts.

    moto computes CRC32 instead of algorithms that need a missing package. It does not set an ACL,
    so GetObjectAcl would fail, and it lists uploaded parts that the request leaves out.
    """

    def completed(self: Any, bucket_name: str, multipart_id: str, body: Any) -> Any:
        upload, wanted = self.get_bucket(bucket_name).multiparts[multipart_id], list(body)
        name = upload.metadata.get("x-amz-checksum-algorithm")
        needed = {number for number, _ in wanted} if name in _NOT_OF_MOTO else set()
        # moto deletes the parts when it completes the upload.
        parts = [part.value for number, part in sorted(upload.parts.items()) if number in needed]
        key = complete(self, bucket_name, multipart_id, wanted)
        if parts and key is not None:
            is_composite = key.checksum_type == "COMPOSITE"
            key.checksum_value = checksum_of_parts(name, parts, is_composite)
        if key is not None:
            upload.partlist = [number for number, _ in wanted]
        if key is not None and key.acl is None:
            key.set_acl(self.get_bucket(bucket_name).acl)
        return key

    return completed


def of_the_null_version(head_object: Callable[..., Any]) -> Callable[..., Any]:
    """Handle HeadObject with versionId=null, which rclone sends after a multipart upload."""

    def head_current_version(
        self: Any, bucket_name: str, query: dict[str, Any], *rest: Any, **more: Any
    ) -> Any:
        if (
            query.get("versionId") == ["null"]
            and not self.backend.get_bucket(bucket_name).is_versioned
        ):
            query = {name: value for name, value in query.items() if name != "versionId"}
        return head_object(self, bucket_name, query, *rest, **more)

    return head_current_version


def with_no_tags(put_object_tagging: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Handle PutObjectTagging with an empty TagSet, which removes an object's tags."""

    def tagged(self: Any) -> Any:
        place = self.bucket_name, self.parse_key_name(), self._get_param("versionId")
        if b"<Tag>" in self.body or not isinstance(self.backend.get_object(*place), FakeKey):
            return put_object_tagging(self)
        self.backend.delete_object_tagging(*place)
        return 200, {}, ""

    return tagged
