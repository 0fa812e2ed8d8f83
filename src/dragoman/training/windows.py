"""The updates of a training in their order: which batches, from which place in the data on, made ready ahead of the step (Section 5.1)."""

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, Full, Queue
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from dragoman.config import Config
from dragoman.data.batching import Batch, Indices, draw_pairs, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.packing import batch_of
from dragoman.data.tokenizer import Tokenizer
from dragoman.training.distributed import Ranks
from dragoman.training.state import Plan, Progress

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


def windows(corpus: Corpus, config: Config, tokenizer: Tokenizer, ranks: Ranks, *, after: Progress | None = None) -> Generator[Window]:
    """The updates ``after`` a place, or from the start: of its epoch and all epochs behind it; the last of an epoch may be smaller.

    An epoch that was begun by another plan is ended by this one: the pairs that it has not seen come, and no others. ``tokenizer`` is
    that of the target. What comes is a pure function of the settings and the place.
    """
    training = config.training
    first, done, earlier = (after.epoch, after.position, after.earlier) if after else (0, 0, ())
    for epoch in count(first):
        plan = Plan.of(training)._replace(seed=earlier[0][0].seed if earlier else training.seed)  # a corpus is cut by one seed an epoch
        seen = corpus.of_epoch(epoch, seed=plan.seed, most=plan.batch_tokens)
        pairs = draw_pairs(seen.parts, config.data.weights, seed=plan.seed, epoch=epoch)
        for before, updates in earlier:
            then = corpus.of_epoch(epoch, seed=plan.seed, most=before.batch_tokens)
            batches = _batches(then, before._replace(seed=plan.seed), epoch, pairs)
            pairs = np.concatenate([np.empty(0, np.int64), *batches[updates * before.accumulate :]])
        batches = _batches(seen, plan, epoch, pairs)
        for position, start in enumerate(range(0, len(batches), plan.accumulate), start=1):
            if position > done:
                window = make_window(seen, batches[start : start + plan.accumulate], tokenizer, ranks, all_parts=training.shard)
                yield window._replace(epoch=epoch, position=position)
        done, earlier = 0, ()


def _batches(seen: Corpus, plan: Plan, epoch: int, pairs: Indices | None) -> list[Indices]:
    return plan_batches(seen.source_lengths, seen.target_lengths, batch_tokens=plan.batch_tokens, seed=plan.seed, epoch=epoch, pairs=pairs)


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
