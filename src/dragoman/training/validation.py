"""The loss on the validation text: of every token once, and for models of one sequence also an estimate from some places (Section 5)."""

import math
from collections.abc import Callable
from statistics import mean, stdev

import torch

from dragoman.config import Config
from dragoman.data.batching import Batch, ordered_batches
from dragoman.data.corpus import Corpus
from dragoman.data.packing import PackedCorpus, batch_of
from dragoman.data.tokenizer import Tokenizer
from dragoman.training.loss import GuidedLoss, Loss
from dragoman.training.totals import Totals

Measure = Callable[[Batch], Loss | GuidedLoss]


def validation_figures(
    corpus: Corpus, loss: Measure, config: Config, tokenizer: Tokenizer, *, device: torch.device, step: int
) -> dict[str, float]:
    """Means over all target tokens: loss, nll, ppl and acc.

    A decoder-only model's text also has bits_per_character and bits_per_byte, the end of each document included, where the ids are the
    text itself; and ``sampled`` is the nll of ``training.sampled_batches`` at places drawn for this step, with ``sampled_error``, its
    standard error.
    """
    totals = _totals(corpus, loss, config, tokenizer, device=device)
    figures = totals.means()
    if not isinstance(corpus, PackedCorpus):
        return figures
    lossless = tokenizer.kind in ("bpe", "characters") and not corpus.unknown and config.data.normalization == "none"
    if corpus.masking is None and lossless:
        bits = totals.negative_log_likelihood / math.log(2)
        _, characters, size = corpus.texts
        figures |= {"bits_per_character": bits / characters, "bits_per_byte": bits / size}
    if count := config.training.sampled_batches:
        rows = max(config.training.batch_budget // corpus.size, 1)
        some = [
            _totals(corpus.at_random(rows, seed=step * count + number), loss, config, tokenizer, device=device).means()["nll"]
            for number in range(count)
        ]
        figures |= {"sampled": mean(some)} | ({"sampled_error": stdev(some) / math.sqrt(count)} if count > 1 else {})
    return figures


def _totals(corpus: Corpus, loss: Measure, config: Config, tokenizer: Tokenizer, *, device: torch.device) -> Totals:
    totals = Totals()
    for indices in ordered_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=config.training.batch_budget):
        batch = batch_of(corpus, indices, tokenizer).to(device)
        totals.add(loss(batch), int(batch.target_mask.sum()))
    return totals
