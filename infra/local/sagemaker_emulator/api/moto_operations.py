"""Finds the operations of a service that moto implements, by inspecting moto's classes.

moto calls the method of the service's response class that is named after the operation. For S3,
moto routes requests by different rules, so an operation counts as implemented if the response class
or the backend has a method with its name.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from botocore.model import OperationModel
from moto.core.utils import camelcase_to_underscores
from moto.s3.models import S3Backend

from sagemaker_emulator.api.protocol import CredentialScope
from sagemaker_emulator.api.validation import service_model

_SIGNS_FOR_NOTHING = "x-id"
"""Query key with which SDKs add the operation to access logs. S3 ignores it."""
_POSTED_TO_OBJECTS = frozenset({"uploads", "uploadId", "restore"})
"""Query keys of the S3 operations that POST to an object. moto fails on all others."""

_CLOSED = frozenset({"SelectObjectContent"})
"""S3 operations that AWS has closed to new customers (S3 Select, July 2024).

moto fails with an internal error on SQL that it cannot parse.
"""


@functools.cache
def operations_of_moto(service: str) -> frozenset[str]:
    """Return the operations of a service (botocore's name) that moto implements.

    The set is empty if moto lacks the service.
    """
    classes = _response_classes(service)
    if service == "s3":
        classes = [*classes, S3Backend]
    offered = set(service_model(service).operation_names) - (_CLOSED if service == "s3" else set())
    return frozenset(
        name
        for name in offered
        if any(
            _is_implemented(getattr(one, camelcase_to_underscores(name), None)) for one in classes
        )
    )


def unmodelled_s3_operation(environ: Mapping[str, Any], scope: CredentialScope | None) -> bool:
    """Return True if a request is an S3 operation that moto does not implement.

    moto would ignore the query and run a different operation: GET ?analytics would list the
    bucket's objects, and DELETE ?metrics would delete the bucket.
    """
    query = str(environ.get("QUERY_STRING", ""))
    if scope is not None and scope.service != "s3":
        return False
    bucket, _, key = str(environ.get("PATH_INFO", "")).lstrip("/").partition("/")
    method, is_object = str(environ.get("REQUEST_METHOD")), bool(key)
    asked = {name for name, _ in parse_qsl(query, keep_blank_values=True)}
    if method == "POST" and is_object and asked.isdisjoint(_POSTED_TO_OBJECTS):
        return True
    return bool(bucket) and any((method, is_object, name) in _unmodelled_s3() for name in asked)


@functools.cache
def _unmodelled_s3() -> frozenset[tuple[str, bool, str]]:
    """Return the request signatures (see below) of the S3 operations that moto lacks.

    Signatures that are shared with an implemented operation are left out.
    """
    model, done = service_model("s3"), operations_of_moto("s3")
    signs: dict[bool, set[tuple[str, bool, str]]] = {True: set(), False: set()}
    for name in model.operation_names:
        if sign := s3_request_signature(model.operation_model(name)):
            signs[name in done].add(sign)
    return frozenset(signs[False] - signs[True])


def s3_request_signature(operation: OperationModel) -> tuple[str, bool, str] | None:
    """Return the HTTP method, True if on an object, and query key that identify an S3 operation.

    Return None if the operation has no query key.
    """
    path, _, query = operation.http["requestUri"].partition("?")
    name = query.partition("&")[0].partition("=")[0]
    if not name or name == _SIGNS_FOR_NOTHING:
        return None
    return operation.http["method"], "{Key+}" in path, name


def _response_classes(service: str) -> list[type]:
    try:
        urls = importlib.import_module(f"moto.{service.replace('-', '')}.urls")
    except ModuleNotFoundError:
        return []
    owners = [getattr(called, "__self__", None) for called in urls.url_paths.values()]
    classes = [one if inspect.isclass(one) else type(one) for one in owners if one is not None]
    return list(dict.fromkeys(classes))


def _is_implemented(method: Callable[..., Any] | None) -> bool:
    """Return True if a method exists and does more than raise NotImplementedError."""
    if method is None:
        return False
    if "NotImplementedError" not in inspect.unwrap(method).__code__.co_names:
        return True
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return not any(isinstance(statement, ast.Raise) for statement in function.body)
