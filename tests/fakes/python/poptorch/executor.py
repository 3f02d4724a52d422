"""Fake `poptorch.trainingModel` and `inferenceModel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from poptorch.options import Options, OutputMode, ReductionType

_running: dict[str, Any] = {"on_ipu": False, "training": False, "loss": None}

#: methods that read a tensor's values, which a traced one lacks
_LOOKS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__"}


class PoptorchError(RuntimeError):
    pass


class _Static(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LOOKS and _running["on_ipu"]:
            raise PoptorchError(f"Tensor.{name} asks for a value while the model is traced for an IPU")
        return func(*args, **(kwargs or {}))


@contextmanager
def _on_ipu(training: bool) -> Iterator[None]:
    _running.update(on_ipu=True, training=training, loss=None)
    try:
        with _Static():
            yield
    finally:
        _running.update(on_ipu=False, training=False)


def isRunningOnIpu() -> bool:  # noqa: N802
    return bool(_running["on_ipu"])


def is_training() -> bool:
    """Whether gradient ops are wanted; only in the fake."""
    return bool(_running["training"])


def mark_loss(loss: Tensor) -> None:
    if _running["on_ipu"]:
        _running["loss"] = loss


class PoplarExecutor:
    def __init__(
        self, model: torch.nn.Module, options: Options | None, training: bool, optimizer: torch.optim.Optimizer | None
    ) -> None:
        if options is not None and not isinstance(options, Options):
            raise PoptorchError(f"options is a {type(options).__name__}; give poptorch.Options")
        self._model, self._options, self._training = model, options or Options(), training
        self._options._freeze()
        self._optimizer = optimizer
        self._shapes: Any = None
        if training and optimizer is None:
            self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @property
    def model(self) -> torch.nn.Module:
        return self._model

    @property
    def options(self) -> Options:
        return self._options

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: N802
        self._optimizer = optimizer

    def copyWeightsToHost(self) -> None:  # noqa: N802
        """Does nothing: eagerly trained weights are on the host."""

    def destroy(self) -> None:
        self._shapes = None

    def __call__(self, *inputs: Tensor) -> Any:
        options = self._options
        accumulation = options.Training.gradient_accumulation if self._training else 1
        replicas, iterations = options.replication_factor, options.device_iterations
        self._check(inputs, iterations * accumulation * replicas)
        parts = [x.reshape(iterations, accumulation, replicas, -1, *x.shape[1:]) for x in inputs]
        results = []
        with torch.set_grad_enabled(self._training):
            for i in range(iterations):
                for a in range(accumulation):
                    for r in range(replicas):
                        results.append(self._micro_batch([x[i, a, r] for x in parts]))
                if self._training:
                    self._update(accumulation * replicas)
        return self._outputs(results, replicas)

    def _check(self, inputs: tuple[Tensor, ...], n_parts: int) -> None:
        if not all(isinstance(x, Tensor) for x in inputs):
            raise PoptorchError("the inputs of a model are tensors")
        shapes = [(tuple(x.shape), x.dtype) for x in inputs]
        if self._shapes not in (None, shapes):
            raise PoptorchError(f"the model was compiled for inputs {self._shapes}, not {shapes}; shapes are static")
        for k, x in enumerate(inputs):
            if x.ndim == 0 or x.shape[0] % n_parts or not x.shape[0]:
                raise PoptorchError(
                    f"Invalid batch dimension: In the input {k}, the batch dimension ({tuple(x.shape)[:1]}) must be a "
                    f"multiple of Options.deviceIterations * Options.replicationFactor * "
                    f"Options.Training.gradientAccumulation = {n_parts}"
                )
        self._shapes = shapes

    def _micro_batch(self, inputs: list[Tensor]) -> Any:
        with _on_ipu(self._training):
            result = self._model(*inputs)
            loss = _running["loss"]
        if self._training:
            if loss is None:
                raise PoptorchError(
                    "a model for training marks its loss: poptorch.identity_loss, or a loss of torch.nn"
                )
            if loss.numel() != 1:
                raise PoptorchError(f"the loss has {loss.numel()} elements; reduce it to one")
            loss.backward()
        return _map(result, lambda x: x.detach())

    def _update(self, n_parts: int) -> None:
        assert self._optimizer is not None
        kind = self._options.Training.accumulation_and_replication_reduction_type
        n_processes = self._options.Distributed.numProcesses
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if n_processes > 1:
                    _sum_over_processes(p.grad)
                if kind == ReductionType.Mean:
                    p.grad /= n_parts * n_processes
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _outputs(self, results: list[Any], replicas: int) -> Any:
        mode = self._options.output_mode
        if mode == OutputMode.Default:
            mode = OutputMode.Final if self._training else OutputMode.All
        if mode == OutputMode.Final:
            results = results[-replicas:]
        elif mode == OutputMode.EveryN:
            every = self._options.output_return_period
            groups = [results[k : k + replicas] for k in range(0, len(results), replicas)]
            results = [x for k, group in enumerate(groups) if (k + 1) % every == 0 for x in group]
        elif mode == OutputMode.Sum:
            return _join(results, lambda xs: torch.stack(xs).sum(0))
        return _join(results, lambda xs: torch.cat([x[None] if x.ndim == 0 else x for x in xs]))


def _sum_over_processes(gradient: Tensor) -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, gradient.numpy())


def _map(x: Any, f: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, (tuple, list)):
        return tuple(_map(y, f) for y in x)
    raise PoptorchError(f"a model returns tensors, or tuples and lists of them; it returned a {type(x).__name__}")


def _join(results: list[Any], f: Callable[[list[Tensor]], Tensor]) -> Any:
    if isinstance(results[0], Tensor):
        return f(results)
    return tuple(_join([r[k] for r in results], f) for k in range(len(results[0])))


def trainingModel(  # noqa: N802
    model: torch.nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    return PoplarExecutor(model, options, True, optimizer)


def inferenceModel(model: torch.nn.Module, options: Options | None = None) -> PoplarExecutor:  # noqa: N802
    return PoplarExecutor(model, options, False, None)
