"""What a sweep made and what it is made of, as Prefect assets: the UI draws dataset and image
beside the report.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from prefect.assets import Asset, AssetProperties, materialize
from prefect.cache_policies import NO_CACHE

from nodesweep.configs.models import PlatformConfig
from nodesweep.scaling import names
from nodesweep.tasks.platform import TASK_OPTIONS
from nodesweep.tasks.storage import browser_url

logger = logging.getLogger("nodesweep.assets")


def materialize_assets(platform: PlatformConfig, sweep: str, provenance: Mapping[str, Any]) -> None:
    """Dataset, image and report of a sweep, the last one derived from the first two;
    a failure is only a warning.
    """
    report_key = names.report_key(platform.prefix, sweep, names.REPORT_HTML)
    try:
        dataset = (
            [_asset(provenance["dataset_uri"], "dataset")] if provenance["dataset_uri"] else []
        )
        sources = [*dataset, _asset(f"ecr://{provenance['image_uri']}", "training image")]
        for source in sources:
            _materialize(source, [])
        report = f"s3://{platform.bucket}/{report_key}"
        _materialize(
            _asset(report, f"scaling report of {sweep}", browser_url(platform, report_key)), sources
        )
    # a URI that Prefect refuses as a key, a server that does not answer: the report is made
    except Exception as error:
        logger.warning("the assets of %s were not recorded: %s", sweep, error)


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
        """Prefect: the asset is there."""

    record()
