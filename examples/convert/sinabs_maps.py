"""Sinabs: squeezed layers, whose steps and samples are one axis, on events of a camera."""

import sinabs
import sinabs.layers as sl
import torch
from patterns import maps
from torch import nn

import sparsesnn as ss


def network() -> nn.Module:
    one = {"spike_fn": sinabs.activation.SingleSpike, "num_timesteps": 10}
    return nn.Sequential(
        nn.Conv2d(2, 8, 3),
        sl.IAFSqueeze(**one),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 5 * 5, 2),
        sl.IAFSqueeze(**one),
    )


def squeezed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(0, 1).flatten(0, 1)


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return network(), squeezed(maps(10, 3, 0)[0])


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = maps(10, 16, step)
        optimizer.zero_grad()
        sinabs.reset_states(net)
        logits = net(squeezed(x)).unflatten(0, (-1, 10)).mean(1)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
