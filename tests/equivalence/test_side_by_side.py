"""Batches searched side by side by several threads give what one thread gives, and end together."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from dragoman.data.batching import batches_of
from dragoman.decoding import search
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.phrases import ForbiddenPhrases
from dragoman.decoding.search import Found, Search, Wanted
from dragoman.decoding.side_by_side import Check, side_by_side, threads_of_one, workers_for
from dragoman.decoding.translate import Translator
from small_bundles import WORDS, fx_rand, random_sentences

SECONDS = 20  # that a thread waits for another before the test has failed


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two, each of which is worth fewer hypotheses than elsewhere."""
    monkeypatch.setattr("dragoman.decoding.side_by_side._ROWS", 64)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_stand_in_the_order_of_their_items_and_two_threads_share_the_threads_of_pytorch() -> None:
    both = threading.Barrier(2, timeout=SECONDS)

    def work(item: int, check: Check) -> tuple[int, int, int]:
        if item < 2:
            both.wait()  # neither goes on before the other has begun
        return item, threading.get_ident(), torch.get_num_threads()

    found = side_by_side(work, range(6), workers=2)

    assert [item for item, _, _ in found] == [*range(6)]
    assert found[0][1] != found[1][1]
    assert threading.get_ident() in (found[0][1], found[1][1])
    assert {threads for _, _, threads in found} == {1}
    assert torch.get_num_threads() == 2


def test_one_worker_is_the_caller_with_all_threads() -> None:
    found = side_by_side(lambda item, check: (threading.get_ident(), torch.get_num_threads()), range(3), workers=1)

    assert found == [(threading.get_ident(), 2)] * 3


def test_one_worker_leaves_the_number_of_threads_to_those_that_begin_later() -> None:
    """PyTorch gives a new thread what was set last: a thread that has fewer must not set it for all."""
    found: list[int] = []

    def in_a_thread(work: Callable[[], Any]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def of_one() -> None:
        assert torch.get_num_threads() == 2  # or PyTorch would look for the number later
        torch.set_num_threads(1)
        in_a_thread(lambda: torch.set_num_threads(2))
        side_by_side(lambda item, check: found.append(torch.get_num_threads()), range(1), workers=1)

    in_a_thread(of_one)
    in_a_thread(lambda: found.append(torch.get_num_threads()))

    assert found == [1, 2]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_fails_in_one_thread_ends_the_other_at_its_next_step(kind: type[BaseException]) -> None:
    both, ended, caller = threading.Barrier(2, timeout=SECONDS), threading.Event(), threading.get_ident()
    latest = time.monotonic() + SECONDS

    def work(item: int, check: Check) -> None:
        both.wait()
        if threading.get_ident() == caller:
            raise kind("this one")
        while not ended.is_set() and time.monotonic() < latest:
            try:
                check()
            except Exception:
                ended.set()
                raise

    with pytest.raises(kind, match="this one"):
        side_by_side(work, range(2), workers=2)

    assert ended.is_set()
    assert torch.get_num_threads() == 2


def test_of_several_failures_the_first_items_is_told_and_nothing_else_is_begun() -> None:
    both, begun = threading.Barrier(2, timeout=SECONDS), set()

    def work(item: int, check: Check) -> None:
        begun.add(item)
        both.wait()
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        side_by_side(work, range(9), workers=2)

    assert begun == {0, 1}


def test_an_interruption_is_told_before_what_else_has_failed() -> None:
    both = threading.Barrier(2, timeout=SECONDS)

    def work(item: int, check: Check) -> None:
        both.wait()
        raise KeyboardInterrupt if item else ValueError("item 0")

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(2), workers=2)


@pytest.mark.parametrize(
    ("rows", "width", "workers"), [(0, 16, 1), (127, 16, 1), (128, 16, 2), (10**6, 16, 2), (639, 512, 1), (640, 512, 2)]
)
def test_a_thread_of_its_own_is_for_many_hypotheses(rows: int, width: int, workers: int) -> None:
    """The more, the wider a model is."""
    assert workers_for(rows, torch.empty(3, width)) == workers
    assert workers_for(rows, torch.empty(3, width, device="meta")) == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("budget", [40, 300, 2000])
def test_the_batches_of_several_threads_are_about_as_large(workers: int, budget: int) -> None:
    """Each text is in one of them; none is over the budget, and each thread has as many, none much less than a share of all."""
    lengths = [16 + (number * 7) % 23 for number in range(200)] + [39] * 3
    batches = search._even_batches(lengths, budget, workers)
    sizes = [len(batch) * max(lengths[place] for place in batch) for batch in batches]
    assert sorted(place for batch in batches for place in batch) == [*range(len(lengths))]
    assert max(sizes) <= budget
    if workers > 1 and budget == 2000:
        assert len(batches) == -(-len(batches_of(lengths, batch_tokens=budget)) // workers) * workers
        assert min(sizes) > 0.7 * max(sizes)


@pytest.mark.parametrize(
    "options", [SearchOptions(), SearchOptions(no_repeat_ngram=2, forbid=("bek tilu",)), SearchOptions(sample=True, seed=3)]
)
def test_a_search_by_two_threads_is_the_search_by_one(options: SearchOptions) -> None:
    translator, texts = Translator(fx_rand()), random_sentences(150)

    def translated(threads: int) -> list[tuple[Any, ...]]:
        torch.set_num_threads(threads)
        beam, at_work, all_are = None if options.samples_drawn else 4, set[int](), threading.Event()

        def check() -> None:
            at_work.add(threading.get_ident())
            if len(at_work) == threads:
                all_are.set()
            assert all_are.wait(SECONDS)  # no thread goes on before all have begun

        found = translator.translate(texts, beam=beam, options=options, check=check)
        return [(each.text, pytest.approx(each.score, abs=1e-5), tuple(other.text for other in each.alternatives)) for each in found]

    assert translated(2) == translated(1)


def test_what_is_watched_is_searched_by_the_caller_alone() -> None:
    seen: set[int] = set()

    Translator(fx_rand()).translate(random_sentences(150), watch=lambda live, finished: seen.add(threading.get_ident()))

    assert seen == {threading.get_ident()}


def test_a_check_that_raises_ends_the_whole_search() -> None:
    class GoneError(Exception):
        pass

    calls = []

    def check() -> None:
        calls.append(threading.get_ident())
        if len(calls) > 4:
            raise GoneError

    with pytest.raises(GoneError):
        Translator(fx_rand()).translate(random_sentences(300), beam=4, check=check)

    assert len(calls) <= 6  # each thread once more at most


def test_a_check_that_raises_in_one_thread_ends_the_search_of_the_other() -> None:
    calls: list[int] = []
    at_work, caller = threading.Barrier(2, timeout=SECONDS), threading.get_ident()

    def check() -> None:
        own = threading.get_ident()
        calls.append(own)
        if calls.count(own) == 1:
            at_work.wait()
        if own == caller:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        Translator(fx_rand()).translate(random_sentences(600), beam=4, check=check)

    assert calls.count(caller) == 1
    assert len(calls) < 12  # of hundreds: the other may take a step or two while this one fails


def test_what_all_threads_search_at_once_has_at_most_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    batch = Search._batch

    def seen(search: Search, texts: Sequence[Wanted], width: int, check: Check) -> list[list[Found]]:
        sizes.append((len(texts), width * len(texts) * max(16, *(len(text.ids) for text in texts))))
        return batch(search, texts, width, check)

    monkeypatch.setattr(Search, "_batch", seen)
    Translator(fx_rand()).translate(random_sentences(150), beam=4, batch_tokens=1024)

    assert sum(texts for texts, _ in sizes) == 150
    assert max(tokens for _, tokens in sizes) <= 512  # of each of the two


def test_forbidden_phrases_remember_the_outputs_of_one_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, texts = Translator(fx_rand()), random_sentences(150)
    options = SearchOptions(forbid=tuple(f"{one} {other}" for one, other in pairwise(WORDS[:12])))
    threads: dict[ForbiddenPhrases, set[int]] = {}
    both, call = threading.Barrier(2, timeout=SECONDS), ForbiddenPhrases.__call__

    def seen(rule: ForbiddenPhrases, *step: Any) -> None:
        if not any(threading.get_ident() in others for others in threads.values()):
            both.wait()
        threads.setdefault(rule, set()).add(threading.get_ident())
        call(rule, *step)

    monkeypatch.setattr(ForbiddenPhrases, "__call__", seen)
    outputs = [each.text for each in translator.translate(texts, beam=4, options=options)]

    assert [len(each) for each in threads.values()] == [1] * len(threads)
    assert len(set.union(*threads.values())) == 2
    assert not [output for output in outputs if any(f" {phrase} " in f" {output} " for phrase in options.forbid)]


def test_a_thread_that_begins_amid_a_search_leaves_the_threads_of_pytorch_to_those_that_come_later() -> None:
    begun, done, seen = threading.Event(), threading.Event(), list[int]()

    def newcomer() -> None:
        with threads_of_one(1):
            begun.set()
            done.wait(SECONDS)

    beside, later = threading.Thread(target=newcomer), threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    with threads_of_one(2):
        beside.start()
        assert begun.wait(SECONDS)
    done.set()
    beside.join()
    later.start()
    later.join()

    assert seen == [2]
