"""Sinabs: a connection past a layer, and two thresholds."""

import sinabs
import sinabs.layers as sl
import torch
from patterns import spikes
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        one = {"norm_input": False, "spike_fn": sinabs.activation.SingleSpike}
        self.fc1, self.fc2, self.past = nn.Linear(100, 80), nn.Linear(80, 2), nn.Linear(100, 2)
        self.lif1 = sl.LIF(tau_mem=8.0, spike_threshold=torch.tensor(0.7), **one)
        self.lif2 = sl.LIF(tau_mem=15.0, **one)

    def forward(self, x):
        return self.lif2(self.fc2(self.lif1(self.fc1(x))) + self.past(x)).mean(1)


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return Net(), spikes(5, 3, 100, 0)[0].transpose(0, 1)


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = spikes(25, 32, 100, step)
        optimizer.zero_grad()
        sinabs.reset_states(net)
        logits = net(x.transpose(0, 1))
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
