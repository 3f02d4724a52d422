"""Norse: convolutions over events of a camera, step by step."""

import norse.torch as norse
import torch
from patterns import maps
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        p = norse.LIBoxParameters(tau_mem_inv=torch.tensor(300.0))
        self.net = norse.SequentialState(
            nn.Conv2d(2, 8, 3),
            norse.IAFCell(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 5 * 5, 2),
            norse.LIBoxCell(p),
        )

    def forward(self, x):
        state, outputs = None, []
        for step in x:
            y, state = self.net(step, state)
            outputs.append(y)
        return torch.stack(outputs)


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
        logits = net(x).mean(0)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
    correct = (logits.argmax(1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {100 * correct.item():.0f} % of the last batch right")
    return loss.item()


if __name__ == "__main__":
    main()
