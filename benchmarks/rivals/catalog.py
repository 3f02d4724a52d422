"""The contestants, their environments, and the losses they must reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

#: the kinds of semantics, in sparsesnn's terms; all contestants of a kind must have the same loss
SEMANTICS = MappingProxyType(
    {
        "subtract": "v[t] = βv[t-1] - s[t-1] + i[t], s[t] = v[t] > 1",
        "at once": "like subtract, but the reset decays too: v[t] = β(v[t-1] - s[t-1]) + i[t]",
        "zero": "v[t] = βv[t-1]·(1 - s[t-1]) + i[t]",
        "late": "like subtract, but a spike arrives one step later in the next layer",
        "none": "v[t] = βv[t-1] + i[t]: without a reset, as neurons that are parallel in time must be",
        "axonal": "like subtract, but the spikes of each sender reach a hidden layer after its own delay, 0 to 24 steps",
        "axonal, trained": "like axonal, with delays between two steps",
    }
)


N_STEPS, N_SAMPLES = 100, 48
HIDDEN_ACTIVITY = 0.02


@dataclass(frozen=True)
class Rival:
    """One contestant.

    Args:
        name: on the command line.
        title: in tables.
        module: in `contestants`; its `make(task, **options)` returns one training step.
        environment: "own" (sparsesnn's), "torch" or "jax".
        package: the package whose version is reported; None for code in this repository.
        requires: the requirement for pip, if the package's name is not enough.
        semantics: key of `SEMANTICS`.
        kind: "sparsesnn", "dense", "sparse" (hand-written from stock products) or "library".
        note: mode, and differences.
        options: arguments of `make`.
        threads: worker threads; None: those of the run.
        only: names of the workloads it takes part in; empty: all.
        sweep: takes part in the sweep over activities.
        delays: takes part in workloads with delays.
        cameras: takes part in workloads of cameras: "own", with its file for the other workloads; "maps", with
            `contestants/cameras.py`.
        long: takes part in workloads of long sequences.
    """

    name: str
    title: str
    module: str
    environment: str
    package: str | None
    semantics: str
    kind: str
    note: str
    options: dict[str, Any] = field(default_factory=dict)
    requires: str | None = None
    threads: int | None = None
    only: tuple[str, ...] = ()
    sweep: bool = False
    delays: bool = False
    cameras: str = ""
    long: bool = False

    def takes_part(self, workload: str) -> bool:
        course = WORKLOADS[workload]
        if workload in GROUPS["long"]:
            return self.long
        if course.recording or self.only:
            return bool(course.recording and self.cameras) or workload in self.only
        return self.delays or not course.delays

    def runs_on(self, device: str) -> bool:
        """Whether it can run on this device: on a GPU only PyTorch contestants, without the event-sparse engine."""
        return device == "cpu" or (self.environment != "jax" and self.kind != "sparsesnn")

    def contestant(self, *, cameras: bool) -> tuple[str, dict[str, Any]]:
        """Its module, and the arguments of `make`."""
        return (
            ("cameras", {"library": self.name}) if cameras and self.cameras == "maps" else (self.module, self.options)
        )


@dataclass(frozen=True)
class Course:
    """A network and its input.

    Args:
        net: the network.
        delays: steps; a copy of the connections into hidden layers for each, if there are any.
        recording: data set of a camera, see `cameras.Camera`; "": random spikes.
        n_steps, n_samples: T and B.
        dt_ms: width of a step of a recording.
        hidden_activity: target spikes per neuron and step of hidden layers.
        rate: input activity without recordings.
    """

    net: str
    delays: tuple[int, ...] = ()
    recording: str = ""
    n_steps: int = N_STEPS
    n_samples: int = N_SAMPLES
    dt_ms: float = 0.0
    hidden_activity: float = HIDDEN_ACTIVITY
    rate: float = 0.015

    def __str__(self) -> str:
        if self.recording:
            return f"{self.net}, {self.recording}, {self.n_steps} steps of {self.dt_ms:g} ms, batch {self.n_samples}"
        if (self.n_steps, self.n_samples) != (N_STEPS, N_SAMPLES):
            return f"{self.net}, {self.n_steps:,} steps, batch {self.n_samples}"
        return f"{self.net}, delays {', '.join(map(str, self.delays))}" if self.delays else self.net


RIVALS = (
    Rival(
        name="sparsesnn",
        title="**sparsesnn**",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="subtract",
        kind="sparsesnn",
        note="`cpu`, grad_threshold 0.9",
        options={"grad_threshold": 0.9},
        sweep=True,
        delays=True,
        cameras="own",
        long=True,
    ),
    Rival(
        name="sparsesnn-exact",
        title="sparsesnn, every neuron listed",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="subtract",
        kind="sparsesnn",
        note="`cpu`, grad_threshold -inf: the gradient of the dense contestants",
        options={"grad_threshold": float("-inf")},
        cameras="own",
        long=True,
    ),
    Rival(
        name="sparsesnn-unreset",
        title="sparsesnn, without a reset",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="none",
        kind="sparsesnn",
        note='`cpu`, grad_threshold 0.9, `reset="none"`',
        options={"grad_threshold": 0.9, "reset": "none"},
        only=("L100", "L1000", "L10000"),
        long=True,
    ),
    Rival(
        name="sparsesnn-1-thread",
        title="sparsesnn, 1 thread",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="subtract",
        kind="sparsesnn",
        note="`cpu`, grad_threshold 0.9",
        options={"grad_threshold": 0.9},
        threads=1,
        only=("W1",),
    ),
    Rival(
        name="sparsesnn-axonal",
        title="sparsesnn, axonal delays",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="axonal",
        kind="sparsesnn",
        note="`cpu`, grad_threshold 0.9; one delay for each sender",
        options={"grad_threshold": 0.9, "axonal": "fixed"},
        only=("D1",),
    ),
    Rival(
        name="sparsesnn-trained",
        title="sparsesnn, trained axonal delays",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="axonal, trained",
        kind="sparsesnn",
        note="`cpu`, grad_threshold 0.9; each spike arrives at two steps",
        options={"grad_threshold": 0.9, "axonal": "trained"},
        only=("D1",),
    ),
    Rival(
        name="sparsesnn-dense",
        title="sparsesnn, `dense`",
        module="ours",
        environment="own",
        package="sparsesnn",
        semantics="subtract",
        kind="dense",
        note="backend `dense`, mode `auto`",
        options={"grad_threshold": float("-inf"), "backend": "dense"},
        sweep=True,
        delays=True,
        cameras="own",
    ),
    Rival(
        name="fused",
        title="fused dense PyTorch",
        module="fused",
        environment="own",
        package="torch",
        semantics="subtract",
        kind="dense",
        note="hand-written backward, products hoisted out of time",
        sweep=True,
        delays=True,
        cameras="maps",
        long=True,
    ),
    Rival(
        name="convolution",
        title="PyTorch, convolution over time",
        module="convolution",
        environment="own",
        package="torch",
        semantics="subtract",
        kind="dense",
        note="`conv1d` with a tap for each delay, hand-written loop over time",
        only=("D1", "D5", "D25"),
    ),
    Rival(
        name="compile",
        title="torch.compile",
        module="compiled",
        environment="own",
        package="torch",
        semantics="subtract",
        kind="dense",
        note="plain autograd, whole graph of all steps compiled",
    ),
    Rival(
        name="jax-scan",
        title="JAX scan",
        module="jax_scan",
        environment="jax",
        package="jax",
        semantics="subtract",
        kind="dense",
        note="hand-written, jit, products hoisted out of the scan",
        sweep=True,
        long=True,
    ),
    Rival(
        name="csr",
        title="fused CSR PyTorch",
        module="csr",
        environment="own",
        package="torch",
        semantics="subtract",
        kind="sparse",
        note="CSR spikes forward and for dW, dense product for dS, hand-written backward",
        sweep=True,
    ),
    Rival(
        name="snntorch",
        title="snnTorch",
        module="snntorch_net",
        environment="torch",
        package="snntorch",
        semantics="subtract",
        kind="library",
        note="`Leaky` in a loop over time",
        sweep=True,
        delays=True,
        cameras="maps",
        long=True,
    ),
    Rival(
        name="snntorch-state",
        title="snnTorch, `StateLeaky`",
        module="snntorch_state",
        environment="torch",
        package="snntorch",
        semantics="none",
        kind="library",
        note="parallel in time: a convolution with the decay, over all steps; no reset",
        only=("L100", "L1000", "L10000"),
        long=True,
    ),
    Rival(
        name="spikingjelly",
        title="SpikingJelly",
        module="spikingjelly_net",
        environment="torch",
        package="spikingjelly",
        semantics="at once",
        kind="library",
        note="multi-step `LIFNode`, soft reset, detached",
        sweep=True,
        delays=True,
        cameras="maps",
    ),
    Rival(
        name="norse",
        title="Norse",
        module="norse_net",
        environment="torch",
        package="norse",
        semantics="zero",
        kind="library",
        note="`LIFBoxCell`, weights scaled by 1/(1 - β)",
        cameras="maps",
    ),
    Rival(
        name="sinabs",
        title="Sinabs",
        module="sinabs_net",
        environment="torch",
        package="sinabs",
        semantics="at once",
        kind="library",
        note="`LIF` with SingleSpike, batch first; reset in the graph",
        cameras="maps",
    ),
    Rival(
        name="spyx",
        title="Spyx",
        module="spyx_net",
        environment="jax",
        package="spyx",
        semantics="late",
        kind="library",
        note="jit, `nn.run`; β is trained; reset in the graph",
        long=True,
    ),
    Rival(
        name="spyx-psu",
        title="Spyx, `PSU_LIF`",
        module="spyx_psu",
        environment="jax",
        package="spyx",
        semantics="none",
        kind="library",
        note="parallel in time: jit, `associative_scan`; β is trained; no reset",
        only=("L100", "L1000", "L10000"),
        long=True,
    ),
    Rival(
        name="jaxpike",
        title="jaxpike",
        module="jaxpike_net",
        environment="jax",
        package="jaxpike",
        semantics="at once",
        kind="library",
        note="jit, `unroll`; τ is trained; reset in the graph",
    ),
    Rival(
        name="brainevent",
        title="brainevent",
        module="brainevent_net",
        environment="jax",
        package="brainevent",
        requires="brainevent[cpu]",
        semantics="subtract",
        kind="library",
        note="jit, `BinaryArray` products on numba, parallel; event-sparse forward, dense backward",
    ),
)

NMNIST = "2x34x34:5C12-MP2-5C32-MP2-10"
LONG = "700-256-256-20"
GESTURE = "2x128x128:SP4-5C16p-SP2-3C32p-SP2-512-11"
#: 700 inputs at 1.5 %, hidden layers at 2 %, T = 100, B = 48
WORKLOADS = MappingProxyType(
    {
        "W1": Course("700-1024-1024-20"),
        "W2": Course("700-1024r-20"),
        "W3": Course("700-1470-1472-20"),
        "D1": Course("700-1024-1024-20", (0,)),
        "D5": Course("700-1024-1024-20", (0, 6, 12, 18, 24)),
        "D25": Course("700-1024-1024-20", tuple(range(25))),
        # 12c5 and 32c5 over N-MNIST, and SLAYER's network for DVS Gesture without the neurons of its pools
        "N1": Course(NMNIST, (), "nmnist", 300, 8, 1.0, rate=0.006),
        "N2": Course(NMNIST, (), "nmnist", 150, 8, 2.0, rate=0.012),
        "N5": Course(NMNIST, (), "nmnist", 60, 8, 5.0, rate=0.025),
        "N16": Course(NMNIST, (), "nmnist", 16, 8, 18.75, 0.1, rate=0.08),
        "G1": Course(GESTURE, (), "dvsgesture", 300, 2, 1.0, rate=0.002),
        "G2": Course(GESTURE, (), "dvsgesture", 300, 2, 2.0, rate=0.004),
        "G5": Course(GESTURE, (), "dvsgesture", 290, 2, 5.0, rate=0.01),
        "G16": Course(GESTURE, (), "dvsgesture", 16, 2, 90.0, 0.1, rate=0.1),
        # sequences of growing length, for neurons that are parallel in time
        "L100": Course(LONG, n_steps=100, n_samples=4),
        "L1000": Course(LONG, n_steps=1000, n_samples=4),
        "L10000": Course(LONG, n_steps=10_000, n_samples=4),
    }
)
#: names for several workloads at once
GROUPS = MappingProxyType(
    {
        "steps": ("W1", "W2", "W3"),
        "delays": ("D1", "D5", "D25"),
        "cameras": ("N1", "N2", "N5", "N16", "G1", "G2", "G5", "G16"),
        "long": ("L100", "L1000", "L10000"),
    }
)


def chosen(names: list[str] | None) -> list[Rival]:
    """The contestants of these names, in the order of the catalog; all if None. `ValueError` for an unknown name."""
    known = [rival.name for rival in RIVALS]
    if unknown := sorted(set(names or ()) - set(known)):
        raise ValueError(f"no contestant {', '.join(unknown)}; there are {', '.join(known)}")
    return [rival for rival in RIVALS if names is None or rival.name in names]
