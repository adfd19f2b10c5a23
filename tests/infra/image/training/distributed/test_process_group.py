"""The store of the process group, with fakes of PyTorch releases that are not installed here."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from training.cluster import Cluster


class Stores:
    """A torch.distributed whose TCPStore refuses the arguments that a release refuses."""

    def __init__(self, refused: type[Exception] | None, unless: str | None = None) -> None:
        self.refused, self.unless = refused, unless
        self.made: list[dict[str, Any]] = []

    def TCPStore(self, address: str, port: int, world_size: int, **options: Any) -> object:
        if self.refused is not None and self.unless not in options:
            raise self.refused("TCPStore")
        self.made.append(options)
        return object()


@pytest.mark.parametrize(
    ("stores", "use_libuv"),
    [
        (Stores(None), [None]),
        (Stores(NotImplementedError, unless="use_libuv"), [False]),  # 2.4
        (Stores(TypeError), []),  # none takes a socket
    ],
    ids=["listens", "libuv takes no socket", "takes no socket"],
)
def test_the_store_listens_at_the_masters_address_where_pytorch_can(
    monkeypatch: pytest.MonkeyPatch, stores: Stores, use_libuv: list[bool | None]
) -> None:
    torch = ModuleType("torch")
    torch.distributed = stores  # type: ignore[attr-defined]
    environments = SimpleNamespace(ClusterEnvironment=object)
    for name, module in {
        "torch": torch,
        "torch.distributed": stores,
        "nodesweep_clock": SimpleNamespace(let_gloo_finish=None),
        "pytorch_lightning": ModuleType("pytorch_lightning"),
        "pytorch_lightning.plugins": ModuleType("plugins"),
        "pytorch_lightning.plugins.environments": environments,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "training.distributed.process_group", raising=False)
    module = importlib.import_module("training.distributed.process_group")
    monkeypatch.delitem(sys.modules, "training.distributed.process_group")
    cluster = Cluster("plain", 2, 0, 1, 0, "algo-1", "127.0.0.1", 0)
    store = module._listen_at_own_address(cluster, 30.0)
    for made in stores.made:
        os.close(made["master_listen_fd"])  # the store's from then on
    assert (store is not None) == bool(use_libuv)
    assert [made.get("use_libuv") for made in stores.made] == use_libuv
