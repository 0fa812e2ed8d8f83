"""The loss on the validation text: of every token once, and for models of one sequence also an estimate from some places (Section 5).

And the judgement whether a model is the best so far.
"""

import math
from collections.abc import Callable, Mapping
from statistics import mean, stdev
from typing import Any

import torch

from dragoman.config import Config
from dragoman.data.batching import Batch, ordered_batches
from dragoman.data.corpus import Corpus
from dragoman.data.packing import PackedCorpus, batch_of
from dragoman.data.tokenizer import Tokenizer
from dragoman.training.loss import GuidedLoss, Loss
from dragoman.training.records import judged_by, merit
from dragoman.training.state import Progress
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


def judge(progress: Progress, record: Mapping[str, Any], *, best_by: str, measure: str) -> dict[str, float | None] | None:
    """Counts an evaluation in the progress, by `measure_of`.

    If no earlier one was better: the figure that decides, with its change from the best before.
    """
    progress.measure = measure
    key, value = judged_by(record, best_by=best_by), merit(record, best_by=best_by)
    before = progress.best
    if any(map(math.isnan, value)) or (before is not None and value <= before):
        progress.evaluations_since_best += 1
        return None
    progress.best, progress.best_step, progress.evaluations_since_best = value, progress.step, 0
    return {key: None if before is None else abs(value[0] - before[0]) * (1 if key == "bleu" else -1)}


def measure_of(config: Config, *, scored: bool) -> str:
    """What the judgement compares, with every setting that changes its numbers; ``scored`` says whether evaluations translate."""
    training = config.training
    if training.best_by == "bleu" and scored and not config.model.single:
        return f"BLEU with {training.bleu_tokenize} words" + (" in lower case" if training.bleu_lowercase else "")
    stride = training.validation_stride
    return f"loss with label_smoothing {training.label_smoothing}" + (f" and validation_stride {stride}" if stride else "")
