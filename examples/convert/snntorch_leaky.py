"""snnTorch: two layers of Leaky neurons, and a loss on the potentials of the last."""

import snntorch as snn
import torch
from patterns import spikes
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(100, 80), nn.Linear(80, 2)
        self.lif1, self.lif2 = snn.Leaky(beta=0.9), snn.Leaky(beta=0.9)

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        recorded = []
        for step in range(x.size(0)):
            spk1, mem1 = self.lif1(self.fc1(x[step]), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            recorded.append(mem2)
        return torch.stack(recorded)


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return Net(), spikes(5, 3, 100, 0)[0]


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = spikes(25, 32, 100, step)
        optimizer.zero_grad()
        logits = net(x).mean(0)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
