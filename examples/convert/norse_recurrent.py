"""Norse: a recurrent matrix, as a Linear that reads the spikes of the step before."""

import norse.torch as norse
import torch
from patterns import spikes
from torch import nn

import sparsesnn as ss


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        subtract = norse.functional.reset.reset_subtract
        p = norse.LIFBoxParameters(tau_mem_inv=torch.tensor(500.0), v_th=torch.tensor(0.5), reset_method=subtract)
        self.first, self.own, self.last = nn.Linear(100, 80), nn.Linear(80, 80, bias=False), nn.Linear(80, 2)
        self.lif, self.readout = norse.LIFBoxCell(p), norse.LIBoxCell()

    def forward(self, x):
        z, state, integrated, outputs = torch.zeros(x.shape[1], 80), None, None, []
        for step in x:
            z, state = self.lif(self.first(step) + self.own(z), state)
            v, integrated = self.readout(self.last(z), integrated)
            outputs.append(v)
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
