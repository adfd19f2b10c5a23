"""Record a sweep's inputs and report as Prefect assets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE

from nodesweep.aws.platform import TASK_OPTIONS
from nodesweep.launch.store import Store
from nodesweep.scaling import names

logger = logging.getLogger("nodesweep.assets")


def materialize_assets(store: Store, sweep: str, provenance: Mapping[str, Any]) -> None:
    """Record a sweep's dataset and image, and the report that derives from them.

    A failure is only logged as a warning.
    """
    report_key = names.report_key(store.prefix, sweep, names.REPORT_HTML)
    try:
        place = provenance["dataset_uri"]
        if place and "://" not in place:  # a folder that the nodes share
            place = Path(place).as_uri()
        dataset = [_asset(place, "dataset")] if place else []
        sources = [*dataset, _asset(f"ecr://{provenance['image_uri']}", "training image")]
        for source in sources:
            _materialize(source, [])
        uri, link = store.uri(report_key), store.link(report_key)
        _materialize(_asset(uri, f"scaling report of {sweep}", link), sources)
    # Prefect may refuse a URI as a key or not respond, but the report is complete anyway.
    except Exception as error:
        logger.warning("the assets of %s can't be recorded in Prefect: %s", sweep, error)


def _asset(key: str, name: str, url: str | None = None) -> Asset:
    return Asset(key=key, properties=AssetProperties(name=name, url=url))


def _materialize(asset: Asset, sources: Sequence[Asset]) -> None:
    @materialize(
        asset,
        asset_deps=list(sources),
        name="record-asset",
        cache_policy=NO_CACHE,
        **TASK_OPTIONS,
    )
    def record() -> None:
        """Record the asset in Prefect."""

    record()
