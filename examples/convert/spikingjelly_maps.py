"""SpikingJelly: convolutions, pools and integrate-and-fire neurons on events of a camera."""

import torch
from patterns import maps
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            layer.Conv2d(2, 8, 3, padding=1),
            neuron.IFNode(surrogate_function=surrogate.ATan()),
            layer.MaxPool2d(2, 2),
            layer.Conv2d(8, 8, 3, padding=1, bias=False),
            neuron.IFNode(surrogate_function=surrogate.ATan()),
            layer.AvgPool2d(2, 2),
            layer.Flatten(),
            layer.Linear(8 * 3 * 3, 2),
            neuron.IFNode(surrogate_function=surrogate.ATan()),
        )
        functional.set_step_mode(self, "m")

    def forward(self, x):
        return self.layers(x).mean(0)


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return Net(), maps(5, 3, 0)[0]


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = maps(10, 16, step)
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
