"""Processes that work together: torchrun starts them, calls them ranks, and ends all when one fails.

Whatever is asked of all ranks must be asked by each of them in the same order.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from dragoman.devices import pick_device
from dragoman.errors import DragomanError, UsageError

_CPU = torch.device("cpu")
_OF_OTHERS = re.compile("gloo|nccl|connect|socket|timed out|timeout", re.IGNORECASE)  # what PyTorch's own says has no type
_PATIENCE = timedelta(hours=6)  # for a rank that encodes a corpus or translates the validation text while others wait


class Place(NamedTuple):
    """A process among others: its number, how many there are, how many of them on this machine, and its device."""

    rank: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device = _CPU


@contextmanager
def connected(device: str, *, through_gpus: bool) -> Iterator[Place]:
    """The place of this process among those that torchrun started, connected while the block runs; one process alone without torchrun.

    Each rank has a GPU of its own, or all compute on CPUs. What they tell each other goes from GPU to GPU (NCCL) if ``through_gpus`` and
    they have some, else from CPU to CPU (gloo). Raises UsageError where there are too few GPUs.
    """
    size = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if size == 1:
        yield Place(device=pick_device(device))
        return
    rank, local_rank, local_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    place = Place(rank, size, local_size, _own_device(device, local_rank, local_size))
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
    nccl = through_gpus and place.device.type == "cuda"
    with answered():
        dist.init_process_group("nccl" if nccl else "gloo", timeout=_PATIENCE)
    yield place
    with answered():  # all have come here: one that leaves with a status of its own, after a signal say, makes torchrun end the others
        dist.all_reduce(torch.zeros(1, device=place.device if nccl else _CPU))
    dist.destroy_process_group()  # not after a failure: it would wait for ranks that are gone


@contextmanager
def answered() -> Iterator[None]:
    """Inside, a rank that is gone is DragomanError; its own message, or torchrun's report, says why it went. One alone has none."""
    try:
        yield
    except RuntimeError as error:
        if not dist.is_initialized() or not (isinstance(error, dist.DistError) or _OF_OTHERS.search(str(error))):
            raise
        reason = str(error).partition("\n")[0]
        raise DragomanError(
            f"another process of this job ended or does not answer ({reason}); see what it said or torchrun's report, then "
            "continue with --resume"
        ) from None


def tell(place: Place, number: int) -> int:
    """The first rank's number on every rank, through CPUs."""
    numbers = torch.tensor([number])
    if place.size > 1:
        with answered():
            dist.broadcast(numbers, src=0)
    return int(numbers)


def gather(place: Place, data: bytes) -> list[bytes]:
    """Every rank's bytes on the first, in the order of the ranks, through CPUs; nothing on the others."""
    if place.size == 1:
        return [data]
    with answered():
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(place.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]))
        longest = max(map(int, sizes))
        padded = torch.frombuffer(bytearray(data.ljust(longest + 1, b"\0")), dtype=torch.uint8)
        gathered = [torch.empty_like(padded) for _ in range(place.size)] if place.rank == 0 else None
        dist.gather(padded, gathered, dst=0)
    return [each[: int(size)].numpy().tobytes() for each, size in zip(gathered or [], sizes, strict=False)]


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
