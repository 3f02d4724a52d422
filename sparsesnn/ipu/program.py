"""A plan, compiled, with the weights of a model on the device: loading, training steps, inference, saving."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.errors import ConfigError, DescriptionError, PlanError, ShapeError
from sparsesnn.ipu.arrays import by_sample, pack_columns, pack_lists, unpack_columns, unpack_lists
from sparsesnn.ipu.backends import machine_arguments, native_module
from sparsesnn.ipu.device_lists import DeviceLists
from sparsesnn.ipu.instance import Instance
from sparsesnn.ipu.neurons import neuron_entries, parameter_rows
from sparsesnn.ipu.report import MachineReport
from sparsesnn.ipu.settings import Optimizer, Regularizer
from sparsesnn.ipu.spec import check, make_spec
from sparsesnn.layers import Input
from sparsesnn.layers.declaration import fires
from sparsesnn.output import Output
from sparsesnn.parameters import PopulationModule
from sparsesnn.partition.pieces import Collector
from sparsesnn.partition.plan import Plan
from sparsesnn.rotation import count_training_step, list_seed
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model


@dataclass(frozen=True)
class Trained:
    """The results of one training step on the device.

    Args:
        loss: mean cross-entropy of the batch, before the step; without the regularizer's term.
        gradient_norm: norm of all gradients together, before clipping.
        logits: float32[B, C]; losses: cross-entropy of each sample, float32[B]; of the samples of this process.
    """

    loss: float
    gradient_norm: float
    logits: Tensor
    losses: Tensor


class IpuProgram:
    """A plan, compiled, with the weights of a model on the device.

    Args:
        plan: for an IPU target, from `sparsesnn.partition.make_plan`; it must list every neuron's tile. Its `replicas`
            run on as many times its IPUs, each with its own samples; their gradients are added before the update (on
            the emulated machine in their order), so that a batch of all samples trains as on one. With its
            `weight_dtype` "half" spikes and gradients read weights rounded to float16, and trained weights are kept as
            float32.
        model: its parameters are copied to the device now, and back by `save`.
        optimizer: its kind must be that of the plan ("adamw" counts as "adam").
        decoding: "max", "mean", "sum" or "last" for an LI readout, "count" for a spiking output.
        n_classes: C.
        label_smoothing: in [0, 1).
        regularizer: the gradient's term for activities outside bounds; None: no term. The plan must be made for it
            (`regularizes`).
        backend: "ipu-model", "ipu", or "sdk-model": the SDK's own model of an IPU, for `sparsesnn.ipu.selftest`.
        instance: the plan's replicas that this process drives; None: all of them.
        checks: when the emulated machine checks for faults: "always", "first" execution of each phase, or "never".

    Errors: `DescriptionError` if the program has no codelet for the network; `PlanError` if a tile's memory overflows;
    `ConfigError` if the backend is not installed.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        optimizer: Optimizer | None = None,
        *,
        decoding: str = "mean",
        n_classes: int | None = None,
        label_smoothing: float = 0.0,
        regularizer: Regularizer | None = None,
        backend: str = "ipu-model",
        checks: str = "first",
        instance: Instance | None = None,
    ) -> None:
        self.plan, self.model = plan, model
        self.optimizer = optimizer or Optimizer(kind=plan.optimizer)
        self.n_classes = n_classes or plan.network.populations[plan.network.output].n
        self.step = 0
        self.n_batches = 0  # batches that ran; the device keeps the lists of the last one
        check(plan, model, self.optimizer, decoding)
        self.label_smoothing = label_smoothing
        regularizer = regularizer or Regularizer()
        if regularizer.bounds and not plan.regularizes:
            raise ConfigError("the plan was made without a regularizer; give make_plan(…, regularizes=True)")
        self.instance = instance or Instance(plan.replicas, plan.replicas)
        if self.instance.total != plan.replicas:
            raise ConfigError(
                f"instance: has replicas of {self.instance.total} in all, but the plan has {plan.replicas}; plan with {self.instance.total}"
            )
        self.replicas, self.n_samples = self.instance.own, self.instance.own * plan.n_samples
        self._names = list(plan.populations)
        native = native_module(backend)
        machine = machine_arguments(native, backend, plan.target, checks, poprun=self.instance.poprun)
        try:
            spec = make_spec(native, plan, model, self.optimizer, decoding, self.n_classes, regularizer, self.instance)
            self._program = native.Program(spec, *machine)
        except ValueError as error:
            raise DescriptionError(str(error)) from None
        except RuntimeError as error:
            if " bytes of its " in str(error):
                raise PlanError(
                    f"{plan.target.name}: {error}", needed=0, available=plan.target.bytes_per_tile
                ) from None
            raise
        self.load()

    # ---- weights -----------------------------------------------------------------------------------------------

    def load(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Copies the model's parameters and, if given, the optimizer's state onto the device."""
        half = self.plan.weight_dtype == "half"
        for key, parameter, pack in self._parameters():
            packed = pack(_numpy(parameter))
            if half and key.startswith("weights."):
                self._fill(key.replace("weights", "rounded"), packed.astype(np.float16).view(np.uint16))
                if not self.plan.trains:
                    continue
            self._fill(key, packed)
            state = {} if optimizer is None else optimizer.state.get(parameter, {})
            for moment, name in self._moments(key):
                value = state.get(name)
                self._fill(moment, pack(np.zeros(parameter.shape, np.float32) if value is None else _numpy(value)))
            if "step" in state:
                self.step = int(state["step"])
        for k, name in enumerate(self._names):
            population = self.plan.network.populations[name]
            if isinstance(population, Input):
                continue
            layer, shards = self._layer(name), self.plan.populations[name].shards
            self._fill(f"entries.{k}", pack_columns(neuron_entries(layer), shards))
            if f"parameters.{k}" in self._program.names():
                self._fill(f"parameters.{k}", pack_columns(np.stack(list(parameter_rows(layer).values())), shards))
            if layer.bias is None:
                self._array(f"bias.{k}")[:] = 0
        for key in self._program.names():
            if key.startswith("gradients."):
                self._array(key)[:] = 0
        if self.plan.replicas > 1:
            indices = np.arange(self.instance.first, self.instance.first + self.replicas, dtype=np.uint32)
            self._fill("first_sample", indices * self.plan.n_samples)
        self._program.run("load")

    def save(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Copies the device's weights into the model and, if given, its moments into the optimizer's state. Without training
        nothing can have changed."""
        if not self.plan.trains:
            return
        self._program.run("save")
        with torch.no_grad():
            for key, parameter, _ in self._parameters():
                parameter.copy_(torch.from_numpy(self._unpacked(key, key, parameter)))
                if optimizer is None or not self.step:
                    continue
                state = optimizer.state[parameter]
                for moment, name in self._moments(key):
                    state[name] = torch.from_numpy(self._unpacked(key, moment, parameter))
                if self.optimizer.keeps_second_moment:
                    state["step"] = torch.tensor(float(self.step), dtype=torch.float32, device="cpu")

    def _parameters(self) -> list[tuple[str, Tensor, Any]]:
        """Array on the device, parameter of the model, and the function that packs one into the form of the other."""
        parameters: list[tuple[str, Tensor, Any]] = []
        for k, c in enumerate(self.plan.connections):
            layer, shards = self._layer(c.post), self.plan.populations[c.post].shards
            layer.check_plain(f"ipu: {c.post}")
            weight = getattr(layer, self.plan.network.connections[k].name)
            parameters.append((f"weights.{k}", weight, lambda x, s=shards: pack_columns(x, s)))
        for k, name in enumerate(self._names):
            population = self.plan.network.populations[name]
            if isinstance(population, Input):
                continue
            layer, shards = self._layer(name), self.plan.populations[name].shards
            for key in ("bias", *(q.name for q in population.parameters)):
                value = getattr(layer, key, None)
                if not isinstance(value, nn.Parameter) or (key != "bias" and not self.plan.trains):
                    continue
                key = key if key == "bias" else f"parameter_{key}"
                if value.ndim:
                    parameters.append((f"{key}.{k}", value, lambda x, s=shards: pack_columns(x[None], s)))
                else:  # every shard has a copy
                    parameters.append(
                        (f"{key}.{k}", value, lambda x, s=shards: np.tile([x, 0], len(s)).astype(np.float32))
                    )
        return parameters

    def _moments(self, key: str) -> list[tuple[str, str]]:
        """The arrays of an array's moments, and their names in torch's optimizers."""
        kind, index = key.split(".")
        base = "" if kind == "weights" else f"{kind}_"
        names = ("moments1", "moments2") if kind == "weights" else ("moment1", "moment2")
        moments = []
        if self.optimizer.keeps_first_moment:
            momentum = "momentum_buffer" if self.optimizer.kind == "sgd" else "exp_avg"
            moments.append((f"{base}{names[0]}.{index}", momentum))
        if self.optimizer.keeps_second_moment:
            moments.append((f"{base}{names[1]}.{index}", "exp_avg_sq"))
        return moments

    def _unpacked(self, key: str, array: str, parameter: Tensor) -> np.ndarray:
        if not parameter.ndim:  # the copies of all shards are equal
            shared: np.ndarray = self._array(array)[:1].reshape(()).copy()
            return shared
        kind, index = key.split(".")
        post = self.plan.connections[int(index)].post if kind == "weights" else self._names[int(index)]
        n_rows = len(parameter) if parameter.ndim == 2 else 1
        shards = self.plan.populations[post].shards
        values: np.ndarray = unpack_columns(self._array(array), n_rows, shards).reshape(parameter.shape).copy()
        return values

    # ---- batches -----------------------------------------------------------------------------------------------

    def train_step(
        self, spikes: SpikeBatch, labels: Tensor, lr: float | None = None, *, n_samples: int | None = None
    ) -> Trained:
        """One batch: forward, loss, backward, update; on the device from end to end.

        Args:
            spikes: T steps as planned; at most the planned number of samples (the rest of the device then idles). With
                several processes, each gives its replicas' samples, possibly none.
            labels: int64[B], or float32[B, C], the share of each class in a mixed sample, rows that sum to 1.
            lr: learning rate of this step; None: the optimizer's.
            n_samples: of the whole batch, over all processes; None: those of `spikes`.
        """
        if self.optimizer.kind == "none":
            raise ConfigError("train_step: the plan was made for optimizer='none'; plan with 'adam' or 'sgd'")
        self._check_input(spikes)
        targets = self._targets(labels, spikes.n_samples)
        self.step += 1
        whole = spikes.n_samples if n_samples is None else n_samples
        self._send(spikes, targets, self.optimizer.lr if lr is None else lr, whole, trains=True)
        self._run_batch("train")
        n = spikes.n_samples
        losses = self._samples("losses").reshape(-1)[:n]
        mean = float(losses.mean()) if n else 0.0
        return Trained(mean, float(self._array("norm")[0]), self._logits(n), torch.from_numpy(losses.copy()))

    def infer(self, spikes: SpikeBatch) -> Tensor:
        """Logits float32[B, C] of a batch, without learning."""
        self._check_input(spikes)
        self._send(spikes, np.zeros((0, self.n_classes), np.float32), 0.0, max(1, spikes.n_samples))
        self._run_batch("infer")
        return self._logits(spikes.n_samples)

    def _run_batch(self, program: str) -> None:
        self.n_batches += 1
        self._program.run(program)

    def counts(self, n_samples: int) -> dict[str, tuple[int, int]]:
        """Spikes and dropped candidates of every spiking population of the last batch, over its first `n_samples` samples."""
        names = [name for name in self._names if fires(self.plan.network.populations[name])]
        if not names:
            return {}
        # per replica: population by population, collectors in the order of samples
        flat = self._array("counts").reshape(self.replicas, len(names), self.plan.n_samples, 2)
        by_sample = flat.transpose(1, 0, 2, 3).reshape(len(names), self.n_samples, 2)[:, :n_samples]
        totals = by_sample.sum(1, dtype=np.int64).tolist()
        return {name: (spikes, dropped) for name, (spikes, dropped) in zip(names, totals, strict=True)}

    def lists(self, n_samples: int | None = None) -> dict[str, SpikeBatch]:
        """The lists of every spiking population in the last batch, with its dropped candidates; fetched from the device."""
        n = self.n_samples if n_samples is None else n_samples
        self._program.run("lists")
        lists = {}
        for k, name in enumerate(self._names):
            p = self.plan.populations[name]
            if not fires(self.plan.network.populations[name]):
                continue
            lists[name] = unpack_lists(
                self._array(f"lists.{k}"),
                self._array(f"dropped.{k}"),
                self.plan.n_steps,
                n,
                p.n,
                self._collectors(name),
            )
        return lists

    def output(self, n_samples: int) -> Output:
        """The last batch as a model's `Output`, without potentials. Its lists are fetched on first access."""
        return Output(potentials=None, spikes=DeviceLists(self, n_samples), state={}, output=self.plan.network.output)

    def report(self) -> MachineReport:
        """The emulated machine's counts since `reset_counts`; `ipu-model` only."""
        return MachineReport.from_native(self._program.report(), self.plan)

    def reset_counts(self) -> None:
        self._program.reset_counts()

    def _targets(self, labels: Tensor, n_samples: int) -> np.ndarray:
        """float32[B, C]: the target share of each class of a sample, smoothed."""
        shares = labels.dtype == torch.float32
        wanted = (n_samples, self.n_classes) if shares else (n_samples,)
        if labels.shape != wanted or not (shares or labels.dtype == torch.int64):
            raise ShapeError(
                f"train_step: labels are {labels.dtype} with shape {tuple(labels.shape)}; give int64 with shape "
                f"({n_samples},), one class per sample, or float32 with shape ({n_samples}, {self.n_classes}), the share "
                "of each class"
            )
        if shares:
            sums = labels.sum(1)
            if not bool((labels >= 0).all()) or not bool(((sums - 1).abs() < 1e-3).all()):
                raise ShapeError(
                    f"train_step: shares of classes run from {float(labels.min()):g} and sum to {float(sums.min()):g} to "
                    f"{float(sums.max()):g} a sample; allowed: from 0, with the sum 1"
                )
        elif len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.n_classes:
            raise ShapeError(
                f"train_step: labels run from {int(labels.min())} to {int(labels.max())}; "
                f"allowed: 0 to {self.n_classes - 1}"
            )
        one_hot = labels if shares else nn.functional.one_hot(labels, self.n_classes).float()
        smoothed = (1 - self.label_smoothing) * one_hot + self.label_smoothing / self.n_classes
        targets: np.ndarray = smoothed.numpy()
        return targets

    def _check_input(self, spikes: SpikeBatch) -> None:
        """`SpikeListError` or `ShapeError` for inconsistent lists, or another shape than the program's."""
        spikes.validate()
        source = self.plan.populations[self.plan.network.inputs[0]]
        got = (spikes.n_steps, spikes.n_neurons)
        least = 0 if self.instance.is_part else 1  # this process may have no samples in a batch
        if got != (self.plan.n_steps, source.n) or not least <= spikes.n_samples <= self.n_samples:
            raise ShapeError(
                f"input has T={spikes.n_steps}, B={spikes.n_samples}, N={spikes.n_neurons}; the program was built for "
                f"T={self.plan.n_steps}, B up to {self.n_samples}, N={source.n}"
            )

    def _send(self, spikes: SpikeBatch, targets: np.ndarray, lr: float, n_whole: int, *, trains: bool = False) -> None:
        """Fills the device's arrays with a checked batch; `n_whole`: samples of all processes."""
        source = self.plan.populations[self.plan.network.inputs[0]]
        collectors = self._collectors(self.plan.network.inputs[0])
        self._fill("lists.0", pack_lists(spikes, self.n_samples, source.capacity, collectors))
        padded = np.zeros((self.n_samples, self.n_classes), np.float32)  # zeros: an absent sample
        padded[: len(targets)] = targets
        self._fill("targets", padded.ravel())
        self._fill("settings", self.optimizer.settings(max(1, self.step), lr, n_whole))
        self._fill(
            "seeds", np.array([self._list_seed(name, trains) for name in self._names], np.uint64).view(np.uint32)
        )

    def _list_seed(self, name: str, trains: bool) -> int:
        if isinstance(self.plan.network.populations[name], Input):
            return 0
        layer = self._layer(name)
        if not trains:
            return list_seed(layer.rotation_seed, 0)
        # A plan may limit the lists of a population without its own capacity, which does not count training steps.
        return list_seed(layer.rotation_seed, count_training_step(layer) or self.step)

    def _logits(self, n_samples: int) -> Tensor:
        return torch.from_numpy(self._samples("logits").reshape(-1, self.n_classes)[:n_samples].copy())

    def _samples(self, key: str) -> np.ndarray:
        """An array with one row a sample: collectors ascend in sample."""
        rows: np.ndarray = by_sample(self._array(key), 1, self._collectors(self.plan.network.output))[0]
        return rows

    def _collectors(self, name: str) -> list[Collector]:
        """The collectors of all replicas, in the order of their arrays."""
        collectors = self.plan.populations[name].collectors
        return [replace(c, first=c.first + r * self.plan.n_samples) for r in range(self.replicas) for c in collectors]

    def _array(self, key: str) -> np.ndarray:
        array: np.ndarray = self._program.array(key)
        return array

    def _fill(self, key: str, values: np.ndarray) -> None:
        self._array(key)[:] = values

    def _layer(self, name: str) -> PopulationModule:
        layer = self.model.layers[name]
        assert isinstance(layer, PopulationModule)
        return layer


def _numpy(x: Tensor) -> np.ndarray:
    array: np.ndarray = x.detach().contiguous().float().numpy()
    return array
