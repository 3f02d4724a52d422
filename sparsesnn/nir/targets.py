"""How each library reads a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Target:
    """How a library reads a graph.

    Args:
        dt: its step; None: must be given.
        exponential: β = e^(-dt/τ), else 1 - dt/τ.
        reset: of its neurons; None: NIR's, "zero".
        reads_r: it uses `r`; otherwise it has its own gain, for which the weights compensate.
        own_gain: that gain: "share" (1 - β) or "unit" (1).
        neurons: supported kinds of nodes.
        recurrent: it supports loops.
        delays: it supports Delay nodes.
        pools: supported reductions.
        one_axis: it supports Conv1d.
        groups: it supports grouped convolutions; importers that make a PyTorch module with the weight's second size do not.
        leaky_maps: it supports leaky neurons on maps.
    """

    dt: float | None
    exponential: bool = False
    reset: tuple[str, bool] = ("zero", False)
    reads_r: bool = True
    own_gain: str = "share"
    neurons: tuple[str, ...] = ("LIF", "CubaLIF", "IF", "LI")
    recurrent: bool = True
    delays: bool = False
    pools: tuple[str, ...] = ("sum", "average")
    one_axis: bool = False
    groups: bool = False
    leaky_maps: bool = True


#: from the source of their importers at the versions of `conventions`
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "nir": Target(
            None,
            neurons=("LIF", "CubaLIF", "IF", "LI", "CubaLI", "I", "Threshold"),
            delays=True,
            one_axis=True,
            groups=True,
        ),
        # its importer passes the input of a recurrent layer through the recurrent weights
        "snntorch": Target(1e-4, neurons=("LIF", "CubaLIF"), recurrent=False, pools=("average",)),
        "norse": Target(1e-3, reads_r=False, neurons=("LIF", "CubaLIF"), recurrent=False, pools=("sum",)),
        "spikingjelly": Target(
            1e-4, reads_r=False, neurons=("LIF", "CubaLIF", "IF"), recurrent=False, pools=("average",)
        ),
        "sinabs": Target(
            1.0,
            True,
            ("subtract", True),
            reads_r=False,
            own_gain="unit",
            neurons=("LIF", "LI", "IF"),
            recurrent=False,
            pools=("sum",),
            leaky_maps=False,  # its importer tests whether any row of v_leak is not 0
        ),
    }
)


#: forms of an LI readout
READOUTS = ("li", "membrane", "linear")


def default_readout(target: str) -> str:
    """The default form of an LI readout for a target."""
    return "li" if "LI" in TARGETS[target].neurons else "membrane"
