"""SpikingJelly: single-step neurons and a loop over Poisson spikes in forward."""

import torch
from patterns import images
from spikingjelly.activation_based import encoding, functional, layer, neuron
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoding.PoissonEncoder()
        self.layers = nn.Sequential(layer.Flatten(), layer.Linear(144, 2, bias=False), neuron.LIFNode(tau=2.0))

    def forward(self, x):
        rate = 0.0
        for _ in range(25):
            rate += self.layers(self.encoder(x))
        return rate / 25


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return Net(), images(3, 0)[0]


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = images(32, step)
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
