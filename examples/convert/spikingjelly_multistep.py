"""SpikingJelly: multi-step layers that run the whole sequence."""

import torch
from patterns import spikes
from spikingjelly.activation_based import functional, layer, neuron
from torch import nn

import sparsesnn as ss


def network() -> nn.Module:
    options = {"tau": 2.0, "decay_input": False, "detach_reset": True}
    net = nn.Sequential(
        layer.Linear(100, 80), neuron.LIFNode(**options), layer.Linear(80, 2), neuron.LIFNode(**options)
    )
    functional.set_step_mode(net, "m")
    return net


def example() -> tuple[nn.Module, torch.Tensor]:
    """The network, and a small batch."""
    torch.manual_seed(0)
    return network(), spikes(5, 3, 100, 0)[0]


def main(steps: int = 30) -> float:
    net, x = example()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    net = ss.convert(net, x)  # the only line that is new
    for step in range(steps):
        x, labels = spikes(25, 32, 100, step)
        optimizer.zero_grad()
        functional.reset_net(net)
        logits = net(x).mean(0)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
