"""Many processes, one training: who takes which rows of an update, and the sums over all of them (Section 5.2, "8 P100 GPUs").

torchrun starts the processes, called ranks, and ends all when one fails. An update is planned as for one process; its batches are shared
out, and the sum of all gradients is the gradient of the whole.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.data.batching import Indices
from dragoman.ranks import Place, answered, connected

_BUCKET = 1 << 23  # numbers that are summed at once: what the sum takes in memory beside the gradients


class Ranks(Place):
    """The processes of a training, seen from the place of this one among them. One process alone asks nobody."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes the run folder, evaluates and speaks."""
        return self.rank == 0

    def share(self, window: Sequence[Indices], *, empty: bool = False) -> list[tuple[int, Indices]]:
        """This rank's part of an update's batches, each with its place among them; nothing is left out, and nothing is given twice.

        Whole batches while there is one for every rank; those left over are split by rows, so that each rank gets pairs of all lengths.
        With ``empty`` parts without a row are given too, so that every rank has equally many.
        """
        whole = len(window) - len(window) % self.size
        parts = [(place, window[place]) for place in range(self.rank, whole, self.size)]
        parts += [(place, window[place][self.rank :: self.size]) for place in range(whole, len(window))]
        return [(place, indices) for place, indices in parts if empty or len(indices)]

    def sum(self, *values: float) -> list[float]:
        """Each number added over all ranks."""
        return self._reduced(list(values), dist.ReduceOp.SUM)

    def largest(self, value: int) -> int:
        """The largest of all ranks' numbers."""
        return int(self._reduced([value], dist.ReduceOp.MAX)[0])

    def first_says(self, value: int) -> int:
        """The first rank's number, not less than 0, whatever the others have."""
        return self.largest(value if self.first else 0)

    def wait(self) -> None:
        """Returns when every rank has come here."""
        self.largest(0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces the gradient of what is trained by its sum over all ranks, the same bits on each; a rank without rows adds zeros.

        What no rank has a gradient of has none after it either, or its weights would decay.
        """
        if self.size == 1:
            return
        for bucket in _buckets(parameter for parameter in parameters if parameter.requires_grad):
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            given = gradients[0].new_tensor([each.grad is not None for each in bucket])
            flat = torch.cat([*(gradient.flatten() for gradient in gradients), given])
            with answered():
                dist.all_reduce(flat)
            *parts, given = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(bucket)])
            for place, (parameter, part) in enumerate(zip(bucket, parts, strict=True)):
                if parameter.grad is not None or given[place]:
                    parameter.grad = part.view_as(parameter)

    def copy_weights(self, model: nn.Module) -> None:
        """Gives the model on every rank the first one's weights: made from one seed, they could differ between kinds of machines."""
        if self.size > 1:
            for parameter in model.parameters():
                with answered():
                    dist.broadcast(parameter.detach(), src=0)

    def gather(self, states: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The bytes of every rank, in the order of the ranks; each has the same names with the same sizes."""
        if self.size == 1:
            return [dict(states)]
        own = torch.cat(list(states.values())).to(self.device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        with answered():
            dist.all_gather(gathered, own)
        sizes = [len(state) for state in states.values()]
        return [dict(zip(states, torch.split(each.cpu(), sizes), strict=True)) for each in gathered]

    def _reduced(self, values: list[float], how: "dist.ReduceOp.RedOpType") -> list[float]:
        if self.size == 1:
            return values
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        with answered():
            dist.all_reduce(numbers, how)
            reduced: list[float] = numbers.tolist()
        return reduced


ALONE = Ranks()
"""One process."""


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, connected while the block runs; one process, on the device of that name, without torchrun.

    Each rank has a GPU of its own (NCCL), or all compute on CPUs (gloo). Raises UsageError where there are too few GPUs.
    """
    with connected(device, through_gpus=True) as place:
        yield Ranks(*place)


def seed_rank(seed: int, *, rank: int, step: int) -> None:
    """Random numbers of a rank's own from a step on, for dropout must not fall on the same places in every rank's rows."""
    torch.manual_seed(int(np.random.default_rng([seed, rank, step]).integers(2**63)))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in a row, together of about ``_BUCKET`` numbers: few sums instead of many, without a copy of the whole model."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(each.numel() for each in bucket) >= _BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
