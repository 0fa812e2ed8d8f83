"""Many processes, one training: who takes which rows of an update, and the sums over all of them (Section 5.2, "8 P100 GPUs").

torchrun starts the processes, called ranks, and ends all when one fails. An update is planned as for one process; its batches are shared
out, and the sum of all gradients is the gradient of the whole.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dragoman.data.batching import Indices
from dragoman.devices import pick_device
from dragoman.errors import DragomanError, UsageError

_CPU = torch.device("cpu")
_BUCKET = 1 << 23  # numbers that are summed at once: what the sum takes in memory beside the gradients
_OF_OTHERS = re.compile("gloo|nccl|connect|socket|timed out|timeout", re.IGNORECASE)  # what PyTorch's own says has no type
_PATIENCE = timedelta(hours=6)  # for the first rank, while it encodes a corpus or translates the validation text


@dataclass(frozen=True)
class Ranks:
    """The processes of a training: this one's number, how many there are, how many of them on this machine, and this one's device.

    Whatever is asked of all ranks must be asked by each of them in the same order. One process alone asks nobody.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device = _CPU

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
        """Replaces the gradient of what is trained by its sum over all ranks, the same bits on each; a rank without rows adds zeros."""
        if self.size == 1:
            return
        for bucket in _buckets(parameter for parameter in parameters if parameter.requires_grad):
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            with answered():
                dist.all_reduce(flat)
            for parameter, part in zip(bucket, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
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
    size = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if size == 1:
        yield Ranks(device=pick_device(device))
        return
    rank, local_rank, local_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    ranks = Ranks(rank, size, local_size, _own_device(device, local_rank, local_size))
    on_gpus = ranks.device.type == "cuda"
    if on_gpus:
        torch.cuda.set_device(ranks.device)
    with answered():
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=_PATIENCE)
    yield ranks
    ranks.wait()  # for a rank that leaves with a status of its own, after a signal say, makes torchrun end the others
    dist.destroy_process_group()  # not after a failure: it would wait for ranks that are gone


def seed_rank(seed: int, *, rank: int, step: int) -> None:
    """Random numbers of a rank's own from a step on, for dropout must not fall on the same places in every rank's rows."""
    torch.manual_seed(int(np.random.default_rng([seed, rank, step]).integers(2**63)))


def _own_device(name: str, local_rank: int, local_size: int) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {name} is one device, and torchrun started {local_size} processes here; give auto, cpu or cuda")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return _CPU
    if gpus < local_size:
        raise UsageError(
            f"torchrun started {local_size} processes on a machine with {gpus} GPUs; start at most one for each GPU, or give --device cpu"
        )
    return pick_device(f"cuda:{local_rank}")


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


@contextmanager
def answered() -> Iterator[None]:
    """Inside, a rank that is gone is DragomanError; its own message, or torchrun's report, says why it went."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or _OF_OTHERS.search(str(error))):
            raise
        reason = str(error).partition("\n")[0]
        raise DragomanError(
            f"another process of this training ended or does not answer ({reason}); see what it said or torchrun's report, then "
            "continue with --resume"
        ) from None
