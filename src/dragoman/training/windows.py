"""The updates of a training in their order: which batches, from which place in the data on, made ready ahead of the step (Section 5.1)."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, Full, Queue
from typing import NamedTuple, TypeVar

import torch

from dragoman.config import Config
from dragoman.data.batching import Batch, Indices, draw_pairs, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.packing import batch_of
from dragoman.data.tokenizer import Tokenizer
from dragoman.training.distributed import Ranks

_Item = TypeVar("_Item")
_LOOK = 0.1  # seconds after which a thread that waits looks whether it is still wanted


class Part(NamedTuple):
    """What a rank computes of one of an update's batches, and that batch's place among them.

    A rank of a sharded model that has no row of a batch passes one through the layers with the others: it does not count.
    """

    place: int
    batch: Batch
    counts: bool = True


class Window(NamedTuple):
    """An update: all its batches and their target tokens, this rank's part, and the place in the data behind it.

    ``aligned`` are the target tokens whose alignment is given.
    """

    batches: list[Indices]
    tokens: int
    parts: list[Part]
    epoch: int = 0
    position: int = 0
    aligned: int = 0


def windows(corpus: Corpus, config: Config, tokenizer: Tokenizer, ranks: Ranks, *, epoch: int = 0, position: int = 0) -> Generator[Window]:
    """The updates after the first ``position`` of an epoch, and those of all epochs after it; the last of an epoch may be smaller.

    ``tokenizer`` is that of the target. What comes is a pure function of the settings and the place.
    """
    training, size = config.training, config.training.accumulate
    for number in count(epoch):
        seen = corpus.of_epoch(number, seed=training.seed, most=training.batch_budget)
        batches = plan_batches(
            seen.source_lengths,
            seen.target_lengths,
            batch_tokens=training.batch_budget,
            seed=training.seed,
            epoch=number,
            pairs=draw_pairs(seen.parts, config.data.weights, seed=training.seed, epoch=number),
        )
        for done, start in enumerate(range(0, len(batches), size), start=1):
            if done > position:
                window = make_window(seen, batches[start : start + size], tokenizer, ranks, all_parts=training.shard)
                yield window._replace(epoch=number, position=done)
        position = 0


def make_window(corpus: Corpus, batches: Sequence[Indices], tokenizer: Tokenizer, ranks: Ranks, *, all_parts: bool = False) -> Window:
    """An update of these batches; with ``all_parts`` every rank has as many."""
    parts = []
    for place, indices in ranks.share(batches, empty=all_parts):
        rows = indices if len(indices) else batches[place][:1]
        parts.append(Part(place, batch_of(corpus, rows, tokenizer), bool(len(indices))))
    return Window(list(batches), sum(map(corpus.predicted, batches)), parts, aligned=sum(map(corpus.aligned, batches)))


def pinned(found: Iterator[Window], device: torch.device) -> Generator[Window]:
    """The same with batches in memory that this GPU can read while it computes."""
    if device.index is not None:
        torch.cuda.set_device(device)  # of the thread that this runs in, or it would take memory on the first GPU as well
    for window in found:
        yield window._replace(parts=[part._replace(batch=part.batch.pinned()) for part in window.parts])


def ahead(items: Iterator[_Item], *, most: int = 2) -> Generator[_Item]:
    """The same items, made by a thread while those before are in use, at most ``most`` ahead; what it raises is raised here.

    The thread ends when the iterator is closed.
    """
    ready: Queue[_Item | BaseException | None] = Queue(most)
    left = threading.Event()

    def hand_over(item: _Item | BaseException | None) -> None:
        while not left.is_set():
            with suppress(Full):
                ready.put(item, timeout=_LOOK)
                return

    def make() -> None:
        try:
            for item in items:
                hand_over(item)
                if left.is_set():
                    return
            hand_over(None)
        except BaseException as error:
            hand_over(error)

    thread = threading.Thread(target=make, name="batches", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = ready.get(timeout=_LOOK)  # so that a signal is seen
            except Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        left.set()
        thread.join()
