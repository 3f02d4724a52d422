"""SGD of the engines `cpu` and `gpu`: every product and every sum is rounded by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparsesnn.engines.sgd import SGD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_bits_and_torch(momentum: float, weight_decay: float) -> None:
    """The bits of NumPy's single operations, and the numbers of `torch.optim.SGD`; 1,003 has a rest at every width of vectors."""
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.nn.Parameter(torch.randn(1003, generator=generator.manual_seed(1))) for _ in range(2))
    settings = {"lr": 0.0123, "momentum": momentum, "weight_decay": weight_decay}
    ours, torch_sgd = SGD([own], **settings), torch.optim.SGD([other], **settings)
    lr, mu, decay = (np.float32(x) for x in settings.values())
    w, m = own.detach().numpy().copy(), np.zeros(1003, np.float32)
    for _ in range(4):
        own.grad = torch.randn(1003, generator=generator)
        other.grad = own.grad.clone()
        d = own.grad.numpy() + decay * w
        m = mu * m + d
        w = w - lr * m
        ours.step()
        torch_sgd.step()
        assert np.array_equal(own.detach().numpy(), w)
    torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
    assert set(ours.state[own]) == ({"momentum_buffer"} if momentum else set())


def test_closures_and_parameters_without_a_gradient() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]

    def closure() -> torch.Tensor:
        loss = parameters[0].sum()
        loss.backward()
        return loss

    assert SGD(parameters, lr=0.5).step(closure) == 3
    assert parameters[0].tolist() == [0.5] * 3
    assert parameters[1].tolist() == [1] * 3
