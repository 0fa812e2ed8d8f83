"""Batches that are searched side by side, each in a thread of its own with its share of PyTorch's threads.

A step of search is many small products. Where several threads share each of them, they wait for one another at the end of each; several
batches, each by a thread of its own, seldom wait (`benchmarks/side_by_side.py` has the figures).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor

Check = Callable[[], None]
"""Called at each step of a search, or every eighth, in the thread that computes it; what it raises ends the search."""

Item = TypeVar("Item")
Result = TypeVar("Result")

_ROWS = 64  # hypotheses that a thread of its own has to be worth at least
_SHARE = 5 / 8  # of a model's width, as many: the wider it is, the more rows a matrix has to be read for
_MOST = 8  # threads that call PyTorch: between two of its products each needs the interpreter, which is one for all

_pool = ThreadPoolExecutor(_MOST - 1, thread_name_prefix="dragoman-search")  # which has no thread before it is needed


class _EndedError(Exception):
    """What was computed elsewhere has failed, or was interrupted."""


def workers_for(rows: int, output: Tensor) -> int:
    """How many threads to share so many hypotheses of a model among, by its output matrix (V, D); one but on a CPU."""
    if output.device.type != "cpu":
        return 1
    return max(1, min(int(rows / max(_ROWS, _SHARE * output.size(1))), torch.get_num_threads(), _MOST))


@contextmanager
def threads_of_one(workers: int) -> Iterator[None]:
    """The threads of PyTorch that one of so many workers has, for this thread until the block ends.

    A thread that uses PyTorch for the first time gets the number that was set last, in whatever thread; so for one worker none is set.
    """
    if workers == 1:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(threads // workers)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(work: Callable[[Item, Check], Result], items: Sequence[Item], *, workers: int) -> list[Result]:
    """What ``work`` returns for each item, in order; threads take the items in that order, the caller's thread among them.

    ``work`` calls its second argument now and then, which ends it once another thread has failed or the caller was interrupted. Raises what
    failed: an interrupt before all else, otherwise what the first of the items that failed raised.
    """
    threads, left, ended = torch.get_num_threads() // workers, count(), threading.Event()
    results: dict[int, Result] = {}
    failed: dict[int, BaseException] = {}

    def check() -> None:
        if ended.is_set():
            raise _EndedError

    def take() -> None:
        while (place := next(left)) < len(items) and not ended.is_set():
            try:
                results[place] = work(items[place], check)
            except _EndedError:
                return
            except BaseException as error:
                failed[place] = error
                ended.set()

    def take_beside() -> None:
        torch.set_num_threads(threads)
        take()

    others: list[Future[None]] = []
    with threads_of_one(workers):
        try:
            others.extend(_pool.submit(take_beside) for _ in range(workers - 1))
            take()
            _until_done(others)
        except BaseException:  # of a signal, which may come while the others are waited for
            ended.set()
            raise
        finally:
            _until_done(others)
    if failed:
        raise min(failed.items(), key=lambda each: (isinstance(each[1], Exception), each[0]))[1]
    return [results[place] for place in range(len(items))]


def _until_done(others: Sequence[Future[None]]) -> None:
    wait([other for other in others if not other.cancel()])  # one that has not begun has nothing left to do
