"""A model as it is now: its layers share its weights and keep what the engine reads, in the order in which it reads them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.utils import parametrize

from sparsesnn.engines.cpu.layer import Snapshot
from sparsesnn.errors import NumericError
from sparsesnn.parameters import computed_by

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model


def still(model: Model) -> Model:
    """A copy for evaluation that later changes of the model do not reach. Memory: as much again as the model's weights."""
    layers = nn.ModuleDict()
    with model.settled():
        for name, layer in model.layers.items():
            layers[name] = _still(name, layer)
    found = copy.copy(model)
    found.runner = copy.copy(model.runner)
    found._modules = {**model._modules, "layers": layers}
    return found.eval()


def _still(name: str, layer: Any) -> Any:
    """A layer as it is now. It shares the weights, of which the engine reads the shapes alone."""
    still = copy.copy(layer)
    # PyTorch computes nothing here: neither a parametrization, which is a property of the class, nor a hook before the pass
    still.__class__ = parametrize.type_before_parametrizations(layer)
    still._modules = {k: x for k, x in layer._modules.items() if k != "parametrizations"}
    still._forward_pre_hooks = OrderedDict((k, h) for k, h in layer._forward_pre_hooks.items() if not computed_by(h))
    weights = {c.name for c in layer.incoming}
    for kind in ("_parameters", "_buffers"):
        tensors = getattr(layer, kind).items()
        setattr(still, kind, {k: x if x is None or k in weights else x.detach().clone() for k, x in tensors})
    for k in layer.computed:
        still.__dict__.pop(k, None)
        still._buffers[k] = layer.tensor(k).detach()
    training, layer.training = layer.training, False  # its numbers are those of evaluation
    try:
        still.snapshot = Snapshot.of(layer)
    except NumericError as error:
        raise NumericError(f"{name}: {error}") from None
    finally:
        layer.training = training
    return still
