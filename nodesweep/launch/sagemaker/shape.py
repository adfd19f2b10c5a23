"""Check a training job's request against botocore's model of CreateTrainingJob.

botocore's own check takes half as long as the rest of `nodesweep plan`, so the model's file is read
directly, and valid requests pass here. Only other requests go through botocore, which reports their
errors.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_MODEL = "data/sagemaker/2017-07-24/service-2.json.gz"
_REQUEST = "CreateTrainingJobRequest"


def shape_problems(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a request's errors according to botocore's model, without sagemaker-core.

    A line can contain a value of the wrong type, but no secret, because secrets are strings.
    """
    if (shapes := _shapes()) is not None and _matches_shape(request, shapes, shapes[_REQUEST]):
        return ()
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(dict(request), _service_shape())
    return tuple(report.generate_report().splitlines()) if report.has_errors() else ()


def _matches_shape(value: Any, shapes: Mapping[str, Any], shape: Mapping[str, Any]) -> bool:
    """Return True if the value certainly has the shape.

    This checks types, required and unknown members, minimum values, and minimum lengths of strings
    and lists.
    """
    kind, least = shape["type"], shape.get("min", 0)
    if kind == "structure" and not shape.get("union"):
        members = shape["members"]
        return (
            isinstance(value, dict)
            and value.keys() <= members.keys()
            and value.keys() >= set(shape.get("required", ()))
            and all(
                _matches_shape(part, shapes, shapes[members[name]["shape"]])
                for name, part in value.items()
            )
        )
    if kind == "list":
        part = shapes[shape["member"]["shape"]]
        return (
            isinstance(value, list)
            and len(value) >= least
            and all(_matches_shape(each, shapes, part) for each in value)
        )
    if kind == "map":
        key, part = shapes[shape["key"]["shape"]], shapes[shape["value"]["shape"]]
        return isinstance(value, dict) and all(
            _matches_shape(name, shapes, key) and _matches_shape(each, shapes, part)
            for name, each in value.items()
        )
    if kind == "string":
        return isinstance(value, str) and len(value) >= least
    if kind in ("integer", "long"):
        return type(value) is int and value >= least
    return kind == "boolean" and isinstance(value, bool)


@lru_cache(maxsize=1)
def _shapes() -> Mapping[str, Any] | None:
    """Return SageMaker's API shapes by name, or None if this botocore stores them elsewhere."""
    found = find_spec("botocore")
    folders = (found.submodule_search_locations if found is not None else None) or [""]
    try:
        shapes = json.loads(gzip.decompress((Path(folders[0]) / _MODEL).read_bytes()))["shapes"]
    except (OSError, ValueError, KeyError):
        return None
    return shapes if _REQUEST in shapes else None


@lru_cache(maxsize=1)
def _service_shape() -> Any:
    import botocore.session

    from nodesweep.aws.api_models import with_shared_models

    model = with_shared_models(botocore.session.Session()).get_service_model("sagemaker")
    return model.operation_model("CreateTrainingJob").input_shape
