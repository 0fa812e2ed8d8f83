"""How many tokens a second the data path delivers: plans of epochs, and batches made of memory-mapped ids, on one core.

    python benchmarks/data_path.py --output benchmarks/data_path.json

The corpus has as many pairs as WMT14 English-German and ids of about its lengths, drawn at random, in files as a run has them. With
--bpe-dropout a second, smaller corpus of generated words is spelled anew for an epoch. Seconds are those that the processor spent, so that
other work on the machine does not count. Tokens are source and target tokens without padding.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.data.batching import Indices, collate, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.data.segmentation import sampled_corpus
from dragoman.data.tokenizer import Tokenizer


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--length", type=float, default=30.0, help="mean tokens of a side")
    parser.add_argument("--batch-tokens", type=int, default=25_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--bpe-dropout", type=float, default=0.1, help="0 leaves that measurement out")
    parser.add_argument("--spelled-pairs", type=int, default=100_000, help="pairs of the corpus of words")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where the files go while it lasts; the system's own otherwise")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/data_path.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "pairs": options.pairs,
        "batch_tokens": options.batch_tokens,
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpus = mapped_corpus(Path(folder), options.pairs, options.length, seed=options.seed)
        facts |= measure(corpus, options.batches, options.batch_tokens)
        if options.bpe_dropout:
            facts["bpe_dropout"] = measure_spelling(Path(folder), options)
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def mapped_corpus(folder: Path, pairs: int, length: float, *, seed: int) -> Corpus:
    """Random ids in memory-mapped files; the sides of a pair differ in length as translations do."""
    random = np.random.default_rng(seed)
    source = np.clip(random.lognormal(np.log(length) - 0.15, 0.55, pairs).round(), 2, 256).astype(np.int32)
    target = np.clip((source * random.normal(1.0, 0.15, pairs)).round(), 2, 256).astype(np.int32)
    sides = {}
    for name, lengths in (("source", source), ("target", target)):
        path = folder / f"{name}.ids"
        random.integers(4, 37_000, lengths.sum(dtype=np.int64), dtype=np.uint16).tofile(path)
        ends = np.cumsum(lengths, dtype=np.int64)
        sides |= {f"{name}_ids": np.memmap(path, "<u2", "r").view(np.ndarray), f"{name}_starts": ends - lengths, f"{name}_lengths": lengths}
    return Corpus(**sides, line_numbers=np.arange(pairs, dtype=np.int32), dropped={}, fingerprint="", parts=(pairs,))


def measure(corpus: Corpus, count: int, batch_tokens: int) -> dict[str, Any]:
    """Seconds to plan an epoch, and tokens a second of batches that are collated one after the other."""
    began = time.process_time()
    batches = plan_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=batch_tokens, seed=1, epoch=0)
    planned = time.process_time() - began
    return {
        "tokens_an_epoch": int(corpus.source_lengths.sum(dtype=np.int64) + corpus.target_lengths.sum(dtype=np.int64)),
        "seconds_to_plan_an_epoch": round(planned, 2),
        "collated_tokens_a_second": collated_rate(corpus, batches[:count]),
    }


def collated_rate(corpus: Corpus, batches: list[Indices]) -> int:
    """Tokens a second."""
    tokens, began = 0, time.process_time()
    for indices in batches:
        batch = collate(corpus, indices, pad=0, bos=1)
        tokens += int(batch.source_mask.sum() + batch.target_mask.sum())
    return round(tokens / (time.process_time() - began))


def measure_spelling(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What it takes to find the words of a corpus once, to spell an epoch of it, and to collate batches of that."""
    random = np.random.default_rng(options.seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(letters[(random.pareto(1.2, size) * 4).astype(int) % 26]) for size in random.integers(1, 12, 50_000)])
    lines = [" ".join(words[(random.pareto(0.9, size) * 10).astype(int) % len(words)]) for size in
             random.integers(5, 40, 2 * options.spelled_pairs)]  # fmt: skip
    tokenizer = Tokenizer.train(lines[:40_000], kind="bpe", vocabulary_size=8000)
    plain = Corpus.build(
        folder / "spelled", zip(lines[::2], lines[1::2], strict=True), source_tokenizer=tokenizer, target_tokenizer=tokenizer,
        max_length=256, batch_tokens=options.batch_tokens,
    )  # fmt: skip
    began = time.process_time()
    corpus = sampled_corpus(folder / "words", plain, tokenizer, tokenizer, dropout=options.bpe_dropout, longest=256)
    found, began = time.process_time() - began, time.process_time()
    epoch = corpus.of_epoch(0, seed=1, most=256)
    spelled = time.process_time() - began
    lengths = epoch.source_lengths, epoch.target_lengths
    batches = plan_batches(*lengths, batch_tokens=options.batch_tokens, seed=1, epoch=0)
    tokens = int(sum(side.sum(dtype=np.int64) for side in lengths))
    rows = [words.spelled for words in corpus.words]
    return {
        "probability": options.bpe_dropout,
        "tokens_an_epoch": tokens,
        "distinct_words": [len(each.lengths) for each in rows],
        "seconds_to_find_the_words_once": round(found, 2),
        "seconds_to_spell_an_epoch": round(spelled, 2),
        "collated_tokens_a_second": collated_rate(replace(epoch), batches[: options.batches]),
        "collated_tokens_a_second_without": collated_rate(plain, plan_batches(
            plain.source_lengths, plain.target_lengths, batch_tokens=options.batch_tokens, seed=1, epoch=0)[: options.batches]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
