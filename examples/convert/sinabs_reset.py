"""Sinabs: integrate-and-fire neurons that reset to zero."""

import sinabs
import sinabs.layers as sl
import torch
from patterns import spikes
from torch import nn

import sparsesnn as ss


def network() -> nn.Module:
    one = {"spike_fn": sinabs.activation.SingleSpike, "reset_fn": sinabs.activation.MembraneReset()}
    return nn.Sequential(nn.Linear(100, 80), sl.IAF(**one), nn.Linear(80, 2), sl.IAF(**one))


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return network(), spikes(5, 3, 100, 0)[0].transpose(0, 1)


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = spikes(25, 32, 100, step)
        optimizer.zero_grad()
        sinabs.reset_states(net)
        logits = net(x.transpose(0, 1)).mean(1)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
