"""The assumption behind a prediction for node counts that were not measured.

Measurements cannot show what changes beyond the measured node counts. The catalogue has the
instance type and its network, but where the platform would place additional nodes is unknown.
"""

from __future__ import annotations

from nodesweep.configs.catalogue import InstanceType, UnknownInstanceType, load_catalogue
from nodesweep.scaling.outcome.outcome import PlatformKind

_NOT_HELD = (
    "if the network is slower there, neither the number nor the interval holds. Runs on fewer "
    "nodes cannot show that, but a run on {nodes} nodes can (docs/fits.md)"
)


def assumption(kind: PlatformKind, instance_type: str | None, largest: int, nodes: int) -> str:
    """Return the assumption behind a prediction at `nodes` from runs on up to `largest` nodes."""
    if kind == "simulated":
        return (
            "Simulated nodes have no network: the prediction describes the model that computed "
            "the times, not a cluster."
        )
    if kind == "emulated":
        return (
            "Emulated nodes share one machine. The prediction assumes that it has room for "
            f"{nodes} of them, and does not describe a network between instances."
        )
    return (
        f"At most {largest} nodes of {_network(instance_type)} were measured. The prediction "
        f"assumes that {nodes} nodes are of the same type and as well connected. Whether they "
        f"would be placed in the same rack is unknown, and {_NOT_HELD.format(nodes=nodes)}."
    )


def _network(instance_type: str | None) -> str:
    """Return the type and its network: "ml.p3.16xlarge (25 Gbit/s per node, without EFA)"."""
    if instance_type is None:
        return "an unknown instance type and network"
    try:
        instance = load_catalogue().get(instance_type)
    except UnknownInstanceType:
        return f"{instance_type} (network unknown)"
    return f"{instance_type} ({_rate(instance)}, {_adapter(instance)})"


def _rate(instance: InstanceType) -> str:
    if instance.network_gbit_per_second is None:
        return "network rate unknown"
    most = "up to " if instance.network_burst else ""
    return f"{most}{instance.network_gbit_per_second:g} Gbit/s per node"


def _adapter(instance: InstanceType) -> str:
    if instance.efa is None:
        return "EFA unknown"
    return "with EFA" if instance.efa else "without EFA"
