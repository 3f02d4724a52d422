"""Adam on the engine's threads against PyTorch's, and bit for bit against itself."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn import _core
from sparsesnn.adam import Adam, AdamW
from sparsesnn.errors import DescriptionError, ShapeError

SHAPES = [(), (1,), (7,), (33, 5), (70, 1003)]  # one value, less than a vector, odd sizes, several pieces of work


def trained(kind: Any, n_steps: int = 5, **numbers: Any) -> list[torch.Tensor]:
    """Parameters after some steps on random gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    optimizer = kind(weights, **numbers)
    for _ in range(n_steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator) * 10.0 ** torch.randint(
                -6, 3, (), generator=generator
            )
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


@pytest.mark.parametrize("betas", [(0.8, 0.97), (0.9, 0.999)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_equals_pytorch(ours: type, theirs: type, weight_decay: float, betas: tuple[float, float]) -> None:
    numbers = {"lr": 0.05, "betas": betas, "eps": 1e-7, "weight_decay": weight_decay}
    for got, want in zip(trained(ours, **numbers), trained(theirs, **numbers), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


def test_bit_equal_across_threads_and_instruction_sets() -> None:
    _core.set_num_threads(1)
    _core.set_isa("base")
    want = trained(AdamW)
    for isa, threads in itertools.product(_core.build_info()["isa_supported"], (1, 2, 3)):
        _core.set_isa(isa)
        _core.set_num_threads(threads)
        for a, b in zip(trained(AdamW), want, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_state_can_be_saved_and_goes_on_the_same() -> None:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 50))
    other = torch.nn.Parameter(weight.detach().clone())
    first, second = Adam([weight]), Adam([other])
    for step in range(4):
        if step == 2:
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            with torch.no_grad():
                other.copy_(weight)
        for w, optimizer in ((weight, first), (other, second)):
            w.grad = torch.full_like(w, 0.1 * (step + 1))
            optimizer.step()
    assert torch.equal(weight, other)
    assert first.state_dict()["state"][0].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_changing_weights_before_backward_is_caught() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    weight.grad = torch.ones(3)
    Adam([weight]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_without_gradient_stay_and_a_closure_is_called() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    assert Adam([weight]).step(lambda: torch.tensor(7.0)) == 7.0
    assert torch.equal(weight, torch.ones(3))


def test_gradients_are_set_to_zero_or_to_none() -> None:
    first, second, frozen = (torch.nn.Parameter(torch.ones(n)) for n in (3, 4, 5))
    optimizer = Adam([{"params": [first, frozen]}, {"params": [second], "lr": 0.1}])
    (first.sum() + second.square().sum()).backward()
    gradient = first.grad
    optimizer.zero_grad(set_to_none=False)
    assert first.grad is gradient
    assert [x.grad is None or x.grad.tolist() for x in (first, second, frozen)] == [[0.0] * 3, [0.0] * 4, True]
    optimizer.zero_grad()
    assert all(x.grad is None for x in (first, second, frozen))


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_hooks_and_the_profiler_see_steps(kind: type[Adam]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, seen = kind([weight], lr=0.5), []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    weight.grad = torch.ones(3)
    first = optimizer.register_step_pre_hook(lambda *_: seen.append(weight[0].item()))
    last = optimizer.register_step_post_hook(lambda *_: seen.append(weight[0].item()))
    optimizer.step()
    assert seen[0] == 1.0
    assert seen[1] < 1.0
    first.remove()
    last.remove()
    optimizer.step()
    assert len(seen) == 2
    assert weight[0] < seen[1]
    scheduler.step()
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert f"Optimizer.step#{kind.__name__}.step" in {event.key for event in profile.key_averages()}


def test_numbers_of_other_libraries() -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for weight, of in zip(weights, (float, np.float64), strict=True):
        weight.grad = torch.ones(3)
        optimizer = Adam([weight], lr=of(0.1), betas=(of(0.5), of(0.75)), eps=of(1e-8), weight_decay=of(0))
        optimizer.step()
        assert type(optimizer.param_groups[0]["lr"]) is type(optimizer.param_groups[0]["betas"][0]) is float
    assert torch.equal(*weights)
    for wrong in (True, "0.1", None):
        with pytest.raises(DescriptionError, match=f"Adam: lr={wrong!r}, "):
            Adam([torch.nn.Parameter(torch.ones(1))], lr=wrong)  # type: ignore[arg-type]


def test_what_it_cannot_update_is_refused() -> None:
    for weight in (torch.ones(3, dtype=torch.float64), torch.ones(3, 4).t()):
        parameter = torch.nn.Parameter(weight)
        parameter.grad = torch.ones_like(parameter)
        with pytest.raises(ShapeError, match="give contiguous float32 on the cpu, or use torch.optim"):
            Adam([parameter]).step()
    fine, wrong = (torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    fine.grad, wrong.grad = torch.ones(3), torch.ones(3, dtype=torch.float64)
    both = Adam([fine, wrong])
    with pytest.raises(ShapeError, match="float64"):
        both.step()
    assert (fine.tolist(), float(both.state[fine]["step"])) == ([1, 1, 1], 0), "all or none"
    with pytest.raises(DescriptionError, match=r"Adam: lr=-1, .*allowed: lr and weight_decay at least 0"):
        Adam([torch.nn.Parameter(torch.ones(1))], lr=-1)
    with pytest.raises(ValueError, match="differ in size"):
        _core.adam(
            [[torch.ones(n).numpy() for n in (3, 3, 2, 1, 3)]],
            lr=0.1, beta1=0.9, beta2=0.9, eps=1e-8, weight_decay=0.0, decoupled=False,
        )  # fmt: skip


def test_weights_and_moments_that_are_replaced_are_updated_where_they_lie() -> None:
    """By other tensors, by other memory of the same tensor, and by a copy of the optimizer."""
    weights = [torch.nn.Parameter(torch.linspace(-1, 1, 40)) for _ in range(2)]
    ours, theirs = Adam(weights[:1], lr=0.1), torch.optim.Adam(weights[1:], lr=0.1)
    for k in range(6):
        if k == 2:
            for weight in weights:
                weight.data = weight.detach() * 2
        if k == 3:
            for optimizer in (ours, theirs):
                state = next(iter(optimizer.state.values()))
                state["exp_avg"] = state["exp_avg"] + 0.5
                state["exp_avg_sq"].data = state["exp_avg_sq"] * 3
        if k == 4:
            ours.load_state_dict(copy.deepcopy(ours.state_dict()))
        if k == 5:
            weights[0], ours = copy.deepcopy((weights[0], ours))
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = torch.cos(torch.arange(40.0) + k)
            optimizer.step()
        torch.testing.assert_close(weights[0].detach(), weights[1].detach(), rtol=1e-5, atol=1e-6)


def test_the_state_of_another_optimizer_is_counted_on_whatever_its_numbers_are() -> None:
    """PyTorch counts steps in its default type: the engine must count in the tensor that is saved, not in a copy."""
    weight = torch.nn.Parameter(torch.ones(5))
    ours, theirs = Adam([weight], lr=0.1), torch.optim.Adam([torch.nn.Parameter(torch.ones(5))], lr=0.1)
    weight.grad = torch.ones(5)
    ours.step()
    saved = ours.state_dict()
    saved["state"][0] = {name: x.double() for name, x in saved["state"][0].items()}
    ours.state[weight] = saved["state"][0]
    twin = theirs.param_groups[0]["params"][0]
    for _ in range(2):
        twin.grad = torch.ones(5)
        theirs.step()
    ours.step()
    assert float(ours.state[weight]["step"]) == 2
    torch.testing.assert_close(weight.detach(), twin.detach())
