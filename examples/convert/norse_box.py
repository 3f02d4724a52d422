"""Norse: LIFBoxCell in a SequentialState, whose state a loop passes on, and a leaky integrator."""

import norse.torch as norse
import torch
from patterns import spikes
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        p = norse.LIFBoxParameters(tau_mem_inv=torch.tensor(500.0))
        self.net = norse.SequentialState(nn.Linear(100, 80), norse.LIFBoxCell(p), nn.Linear(80, 2), norse.LIBoxCell())

    def forward(self, x):
        state, outputs = None, []
        for step in x:
            y, state = self.net(step, state)
            outputs.append(y)
        return torch.stack(outputs)


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
