"""Several kinds of synapses in sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Optional, Tuple  # noqa: UP035

import numpy as np

from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError
from sparsesnn.synapses.base import InLists, Shape, Synapses, as_known_kind, synapses_from_dict


@named
@dataclass(frozen=True)
class Series(Synapses):
    """Each member reads the result of the one before, without neurons between them; the first reads the spikes.

    `Series((Pool("max", 2), Conv2d(64, 5)))` pools spikes and convolves the result; `Series((Conv2d(64, 5), Pool("max", 2)))`
    pools currents, like "convolution, pooling, Leaky" in snnTorch.

    Args:
        members: kinds that read maps; the last may be any kind. At most one has weights, which are the connection's.
    """

    is_matrix: ClassVar[bool] = False
    members: Tuple[Synapses, ...]  # noqa: UP006

    def __post_init__(self) -> None:
        members = tuple(synapses_from_dict(m) if isinstance(m, Mapping) else m for m in self.members)
        object.__setattr__(self, "members", members)
        if len(members) < 2 or any(isinstance(m, Series) or not isinstance(m, Synapses) for m in members):
            raise DescriptionError(f"Series: members are {members!r}; give two or more kinds such as Pool('max', 2)")
        members = tuple(as_known_kind(m, "Series: member") for m in members)
        object.__setattr__(self, "members", members)
        if type(members[-1]).add is Synapses.add:
            raise DescriptionError(f"Series: {members[-1]} cannot be a member; use Dense()")
        for member in members[:-1]:
            if not hasattr(member, "shape"):
                raise DescriptionError(
                    f"Series: {member} is not the last member, but makes no maps for the next one; put it last"
                )

    def bound(self, shape: Optional[Shape], channels_first: bool = False) -> Synapses:  # noqa: UP045
        members: list[Synapses] = []
        for member in self.members:
            members.append(member.bound(shape, channels_first))
            shape, channels_first = members[-1].post_shape, False
        made = replace(self, members=tuple(members))
        weights = [m.weight_shape(*ends) for m, ends in made._pairs(math.prod(shape) if shape else 1)]
        if sum(math.prod(w) > 0 for w in weights) > 1:
            raise DescriptionError(f"{made}: has several members with weights; put neurons between them")
        return made

    @property
    def post_shape(self) -> Optional[Shape]:  # noqa: UP045
        return self.members[-1].post_shape

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "Series", "members": [member.to_dict() for member in self.members]}

    def _pairs(self, n_post: int) -> list[tuple[Synapses, tuple[int, int]]]:
        """Each member with the numbers of neurons before and after it."""
        first = getattr(self.members[0], "shape", None)
        if first is None:
            raise DescriptionError(f"{self}: does not know its sender's shape; put it into a Network")
        after = [*(math.prod(m.post_shape or ()) for m in self.members[:-1]), n_post]
        ends = [*zip([math.prod(first), *after], after)]  # noqa: B905  Python 3.8 knows no strict
        return [*zip(self.members, ends)]  # noqa: B905

    def _weighted(self, n_post: int) -> tuple[Synapses, tuple[int, int]]:
        """The member with weights, or else the last, with its numbers of neurons."""
        pairs = self._pairs(n_post)
        return next((pair for pair in pairs if math.prod(pair[0].weight_shape(*pair[1]))), pairs[-1])

    def weight_shape(self, n_pre: int, n_post: int) -> tuple[int, ...]:
        member, ends = self._weighted(n_post)
        return member.weight_shape(*ends)

    def fan_in(self, n_pre: int, n_post: int) -> int:
        member, ends = self._weighted(n_post)
        return member.fan_in(*ends)

    def cut(self, n_pre: int, n_post: int, begin: int, end: int) -> tuple[int, int]:
        n = self.weight_shape(n_pre, n_post)[-1]
        return n if begin else 0, n if end else 0

    def in_lists(self, n_pre: int) -> InLists | None:
        """Pools of spikes, and one kind that reads their result."""
        pools: tuple[Any, ...] = ()
        for member in self.members[:-1]:
            lists = member.in_lists(n_pre)
            if lists is None or not lists.pools:
                return None
            pools, n_pre = pools + lists.pools, lists.n_pre
        last = self.members[-1].in_lists(n_pre)
        return last and InLists(pools + last.pools, last.kind, last.n_pre)

    def n_read(self, n_pre: int, n_post: int) -> int:
        lists = self.in_lists(n_pre)
        return lists.kind.n_read(lists.n_pre, n_post) if lists else n_pre

    def n_products(self, n_pre: int, n_post: int) -> int:
        return sum(member.n_products(*ends) for member, ends in self._pairs(n_post))

    def widest(self, n_pre: int, n_post: int) -> int:
        return max(max(ends) for _, ends in self._pairs(n_post))

    def add(self, i: Any, spikes: Any, weight: Any) -> None:
        self.members[-1].add(i, self._read(spikes, weight, i.dtype)[-1], weight)

    def pull(self, spikes: Any, weight: Any, d: Any) -> tuple[Any, Any]:
        d_weight = np.zeros_like(weight)
        read = self._read(spikes.reshape(-1, spikes.shape[-1]), weight, d.dtype)
        for member, given in zip(reversed(self.members), reversed(read)):  # noqa: B905  Python 3.8
            d, share = member.pull(given.reshape(*d.shape[:2], given.shape[-1]), weight, d)
            d_weight = d_weight + share
        return d, d_weight

    def _read(self, spikes: Any, weight: Any, dtype: Any) -> list[Any]:
        """The input of each member, [rows, neurons]."""
        read = [spikes]
        for member in self.members[:-1]:
            made = np.zeros((len(spikes), math.prod(member.post_shape or ())), dtype)
            member.add(made, read[-1], weight)
            read.append(made)
        return read

    def product(self, spikes: Any, weight: Any) -> Any:
        for member in self.members:
            spikes = member.product(spikes, weight)
        return spikes

    def fan_out(self, weight: Any, d: Any) -> Any:
        """Paths through the members."""
        for member in reversed(self.members):
            d = member.fan_out(weight, d)
        return d

    def product_grad(self, spikes: Any, weight: Any, d: Any, needs: tuple[bool, bool]) -> tuple[Any, Any]:
        read = [spikes]
        for member in self.members[:-1]:
            read.append(member.product(read[-1], weight))
        owner, d_weight = self._weighted(d.shape[-1])[0], None
        for k, member in reversed(list(enumerate(self.members))):
            owns = member is owner and needs[1]
            d, gradient = member.product_grad(read[k], weight, d, (k > 0 or needs[0], owns))
            d_weight = gradient if owns else d_weight
            if d_weight is not None and not needs[0]:
                return None, d_weight
        return d, d_weight
