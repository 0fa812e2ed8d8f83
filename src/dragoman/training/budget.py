"""``training.batch_tokens=auto``: the largest batches that the memory takes (Section 5.1).

On a CPU, where too much memory ends the process or stops the machine, by `estimate_memory`; on a GPU by updates that are tried.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.corpus import Corpus
from dragoman.data.packing import PackedCorpus, packed
from dragoman.devices import free_memory
from dragoman.errors import DragomanError
from dragoman.model.build import build_model
from dragoman.training.distributed import ALONE, Ranks
from dragoman.training.log import RunLog
from dragoman.training.preflight import estimate_memory, products_will_be_narrow
from dragoman.training.run import Prepared
from dragoman.training.state import Progress
from dragoman.training.totals import Totals
from dragoman.training.trainer import Trainer

MOST_ON_CPU = 25_000
"""Tokens a side that an update never exceeds on a CPU: the paper's (5.1)."""
MOST_ON_GPU = 400_000
"""The same on a GPU: the most from which a model is told to learn as well (Ott et al. 2018, "Scaling Neural Machine Translation")."""
LEAST_UPDATES = 50
"""An epoch keeps so many updates, or a small corpus would be one batch."""

_SAFE_ON_CPU, _SAFE_ON_GPU = 0.7, 0.9  # of the free memory, for what a step takes in passing; of what was tried, for gaps between blocks
_CLOSE = 16  # the search ends when the answer is known to one part in so many


def settle_budget(prepared: Prepared, *, device: torch.device, ranks: Ranks = ALONE) -> Prepared:
    """The same with a number for ``training.batch_tokens=auto``, as the first of ``ranks`` finds it; a number stays.

    Raises DragomanError when not even the longest pair fits on a GPU; on a CPU that is for `preflight` to refuse.
    """
    if prepared.config.training.batch_tokens != "auto":
        return prepared
    budget = _find(prepared, device, ranks) if ranks.first else 0
    return replace(prepared, config=prepared.config.with_values(training={"batch_tokens": ranks.first_says(budget)}))


def largest_fitting(fits: Callable[[int], bool], *, least: int, most: int) -> int:
    """The largest number from ``least`` to ``most`` that fits, to a sixteenth; 0 when the least does not. A larger one never fits better.

    It is doubled until it does not fit, for a try of one far too large may take long.
    """
    low, high = 0, least
    while fits(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while low and high - low > max(low // _CLOSE, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _find(prepared: Prepared, device: torch.device, ranks: Ranks) -> int:
    config, corpus, validation = prepared.config, prepared.corpus, prepared.validation
    longer_sides = np.maximum(corpus.source_lengths, corpus.target_lengths)
    least = max(int(each.max()) for both in (corpus, validation) if both for each in (both.source_lengths, both.target_lengths))
    if config.data.bpe_dropout:  # then pairs are longer than they stand in the corpus
        least = max(least, min(config.data.max_length, config.model.max_positions))
    training = config.training
    most = (MOST_ON_GPU if device.type == "cuda" else MOST_ON_CPU) // training.accumulate
    most = max(least, min(most, int(longer_sides.sum(dtype=np.int64)) // (LEAST_UPDATES * training.accumulate)))
    parts = ranks.size if training.accumulate < ranks.size else 1  # a rank's share of a batch, as `preflight` counts it

    def rows(budget: int) -> int:
        return -(-(budget // least) // parts)

    if device.type == "cuda" and not training.shard:
        with TemporaryDirectory() as folder:  # for what is logged, which is nobody's
            found = _by_trying(prepared, Path(folder), device, rows, least=least, most=most)
        _release(device)
        return max(least, int(_SAFE_ON_GPU * found)) if found < most else most
    free = free_memory(device)
    if free is None:
        return most
    free = free // ranks.local_size if device.type == "cpu" else free
    shards = ranks.size if training.shard else 1
    narrow = products_will_be_narrow(config, device, free=free, shards=shards)
    room = _SAFE_ON_CPU * free

    def fits(budget: int) -> bool:
        sizes, longest = np.array([rows(budget) * least]), np.array([least])
        needed = estimate_memory(config.model, sizes, longest, training=training, narrow=narrow, on_cpu=device.type == "cpu", shards=shards)
        return needed.total <= room

    return largest_fitting(fits, least=least, most=most) or least


def _by_trying(prepared: Prepared, folder: Path, device: torch.device, rows: Callable[[int], int], *, least: int, most: int) -> int:
    """The largest budget of which two updates run through on pairs that are all as long as the longest."""
    config = prepared.config.with_values(training={"batch_tokens": max(most, least), "accumulate": 1})
    trainer = _trainer(config, prepared, folder, device)

    def fits(budget: int) -> bool:
        trainer.corpus = _equal_rows(rows(budget), least, prepared)
        trainer.progress, trainer.totals = Progress(), Totals()
        try:
            trainer.rehearse(updates=1, seconds=0)  # and one before it, which makes the optimiser's moments
            return True
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "ALLOC_FAILED" not in str(error):  # as the libraries below PyTorch say it
                raise
            return False
        finally:
            trainer.optimizer.zero_grad()
            _release(device)

    found = largest_fitting(fits, least=least, most=most)
    if not found:
        raise DragomanError(
            f"not even one pair of {least} tokens fits into the memory of {device} with this model; choose a smaller --preset, or lower "
            "model.d_model, model.encoder_layers and model.decoder_layers, or data.vocabulary_size"
        )
    return found


def _trainer(config: Config, prepared: Prepared, folder: Path, device: torch.device) -> Trainer:
    """A trainer of weights that nobody keeps, by itself whatever ranks there are."""
    bundle = Bundle(config, build_model(config.model), prepared.source_tokenizer, prepared.target_tokenizer)
    return Trainer(bundle, prepared.corpus, run=folder, log=RunLog(folder, console=None, max_steps=1), device=device)


def _equal_rows(count: int, length: int, prepared: Prepared) -> Corpus:
    """As many pairs or blocks, all of that length."""
    token, corpus = prepared.target_tokenizer.eos, prepared.corpus
    if isinstance(corpus, PackedCorpus):
        stream = np.full(count * length, 1 if token == 0 else 0, np.int32)  # no end of a document
        nothing = np.empty(0, np.int64)
        return packed(stream, nothing, np.zeros((1, 2), np.int64)).in_blocks(size=length, masking=corpus.masking)
    ids, lengths = np.full(count * length, token, np.int32), np.full(count, length, np.int32)
    starts = np.arange(count, dtype=np.int64) * length
    return Corpus(
        source_ids=ids, target_ids=ids, source_lengths=lengths, target_lengths=lengths, source_starts=starts, target_starts=starts,
        line_numbers=np.zeros(count, np.int32), dropped={}, fingerprint="", parts=(count,),
    )  # fmt: skip


def _release(device: torch.device) -> None:
    gc.collect()  # what an exception's traceback holds
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
