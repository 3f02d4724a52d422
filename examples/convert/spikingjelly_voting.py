"""SpikingJelly: a connection past a layer, and ten neurons that vote for each class."""

import torch
from patterns import spikes
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.past = layer.Linear(100, 80), layer.Linear(80, 20), layer.Linear(100, 20)
        self.lif1, self.lif2 = neuron.LIFNode(tau=1.5), neuron.LIFNode(tau=1.5)
        self.vote = layer.VotingLayer(10)
        functional.set_step_mode(self, "m")

    def forward(self, x):
        return self.vote(self.lif2(self.fc2(self.lif1(self.fc1(x))) + self.past(x))).mean(0)


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
        functional.reset_net(net)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
