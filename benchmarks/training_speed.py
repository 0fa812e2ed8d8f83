"""How many tokens a second a training takes: Dragoman, a plain torch.nn.Transformer loop, and transformers' MarianMT with Seq2SeqTrainer.

    python benchmarks/training_speed.py --preset tiny --output benchmarks/training_speed.tiny.json

All have the same sizes, batches and dropout, tied or not as each tool does it, and take turns, each in a process of its own: each round
gives every contender the same batches, and the figure is the median of the rounds. Tokens are source and target tokens without padding.
The batches are Multi30k's published byte pairs where DRAGOMAN_DATA (or ../shared/data) has them; otherwise as many generated pairs of the
same lengths.
The share is the arithmetic of a step (6 for each weight and token; attention's own is left out) over its time, as a part of the rate that
one large matrix product reaches here. On a GPU the same contenders run, with the paper's 25,000 tokens a side unless others are asked for,
and no round begins after four minutes with a preset; --compile puts Dragoman's layers through torch.compile:

    python benchmarks/training_speed.py --preset base big --compile --output benchmarks/training_speed.gpu.json

Marian needs `pip install transformers accelerate`; it is left out, and that is said, where they are missing. The peak of memory is that
of each contender's process; `--vocabulary 64000` shows what a large vocabulary takes.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.batching import Batch, collate, plan_batches
from dragoman.data.corpus import Corpus
from dragoman.devices import keep_freed_memory, peak_memory, pick_device
from dragoman.model.build import build_model
from dragoman.presets import count_parameters, resolve_config
from dragoman.training.distributed import ALONE
from dragoman.training.log import RunLog
from dragoman.training.run import create_run, prepare
from dragoman.training.trainer import Trainer
from dragoman.training.windows import Window, ahead, make_window, pinned

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k" / "bpe10k" / "en-de"
Contender = Callable[[Sequence[Batch]], float]
"""Trains on batches, one update each, and returns the seconds that took."""


def main() -> None:
    """Measures, prints a table and writes it."""
    options = read_options()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    device = pick_device(options.device)
    options.batch_tokens = options.batch_tokens or (25_000 if device.type == "cuda" else 4096)
    options.minutes = options.minutes or (4.0 if device.type == "cuda" else math.inf)
    found = {}
    for preset in options.preset:
        with tempfile.TemporaryDirectory() as folder:
            config, corpus, bundle = material(preset, options, Path(folder))
            batches = chosen_batches(corpus, bundle, options.warm + options.rounds * options.steps, config.training.batch_budget)
            if options.only:
                try:
                    contender = CONTENDERS[options.only](config, bundle, corpus, Path(folder), device, options)
                except ImportError as error:
                    print(error.name)
                else:
                    serve(contender, batches, device)
                return
            contenders = {name: process for name in options.contenders.split(",") if (process := started(name, preset))}
            rates = take_turns(contenders, batches, warm=options.warm, rounds=options.rounds, minutes=options.minutes)
            peaks = {name: json.loads(process.communicate()[0]) for name, process in contenders.items()}
            found[preset] = report(options, config, rates, peaks, device)
    facts = found if len(found) > 1 else found[options.preset[0]]
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def started(name: str, preset: str) -> subprocess.Popen[str] | None:
    """A process that is ready for its turns as this contender; None where what it needs is not installed."""
    command = [sys.executable, __file__, *sys.argv[1:], "--preset", preset, "--only", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if answer := process.stdout.readline():  # type: ignore[union-attr]
        if not answer.startswith("ready"):
            print(f"{name}: left out, for {answer.strip()} is not installed", file=sys.stderr)
            return None
        return process
    raise SystemExit(f"{name} ended with status {process.wait()}")


def serve(contender: Contender, batches: list[Batch], device: torch.device) -> None:
    """Takes the turns that standard input asks for, START STOP among the batches, and says the seconds of each; then the peak of memory."""
    with contextlib.redirect_stdout(sys.stderr):  # a trainer may say things
        answers = sys.__stdout__
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            start, stop = map(int, line.split())
            print(contender(batches[start:stop]), file=answers, flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()  # for the others, which are on the same GPU
        print(json.dumps(peak_memory(device)), file=answers)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["tiny"], help="one after the other")
    parser.add_argument("--batch-tokens", type=int, help="4096, and 25,000 on a GPU, when not given")
    parser.add_argument("--minutes", type=float, help="after which no round of a preset begins; 4 on a GPU when not given, else no limit")
    parser.add_argument("--vocabulary", type=int, default=0, help="generated pairs with so many words a side, instead of Multi30k")
    parser.add_argument("--pairs", type=int, default=29_000, help="generated pairs, where there are such")
    parser.add_argument("--contenders", default="dragoman-fp32,dragoman-bf16,loop-fp32,loop-bf16,marian-fp32,marian-bf16")
    parser.add_argument("--steps", type=int, default=8, help="updates of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=8, help="updates before the first round")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--compile", action="store_true", help="Dragoman's encoder and decoder through torch.compile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the result is written, as JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser.parse_args()


def material(preset: str, options: argparse.Namespace, folder: Path) -> tuple[Config, Corpus, Bundle]:
    """The preset's settings, the corpus, and a bundle with its tokenizer and fresh weights."""
    prefix = DATA / "train"
    if options.vocabulary or not DATA.is_dir():
        prefix = generated_pairs(folder, options.pairs, vocabulary=options.vocabulary or 9700, seed=options.seed)
    settings = {
        "data": {"source": "en", "target": "de", "train": [str(prefix)], "tokenizer": "whitespace", "joiner": "@@", "vocabulary_size": 0},
        "training": {"batch_tokens": options.batch_tokens, "seed": options.seed, "log_every": 10**6, "evaluate_every": 10**6},
    }
    config = resolve_config(preset, flags=settings)
    run = folder / "run"
    create_run(run, config, sys.argv)
    prepared = prepare(run, config)
    torch.manual_seed(options.seed)
    return (
        prepared.config,
        prepared.corpus,
        Bundle(prepared.config, build_model(prepared.config.model), prepared.source_tokenizer, prepared.target_tokenizer),
    )


def generated_pairs(folder: Path, pairs: int, *, vocabulary: int, seed: int) -> Path:
    """Pairs about as long as Multi30k's, of so many made-up words, few of them frequent; each occurs at least once."""
    random = np.random.default_rng(seed)
    words = np.array([f"w{number}" for number in range(vocabulary)])
    lengths = np.clip(random.normal(14, 4, pairs).round().astype(int), 4, 40)
    for language in ("en", "de"):
        lines = [" ".join(words[(random.pareto(1.0, length) * 20).astype(int) % vocabulary]) for length in lengths]
        lines += [" ".join(words[start : start + 20]) for start in range(0, vocabulary, 20)]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "train"


def chosen_batches(corpus: Corpus, bundle: Bundle, count: int, batch_tokens: int) -> list[Batch]:
    """The first batches of the first epochs."""
    tokenizer = bundle.target_tokenizer
    found: list[Batch] = []
    for epoch in range(100):
        for indices in plan_batches(corpus.source_lengths, corpus.target_lengths, batch_tokens=batch_tokens, seed=1, epoch=epoch):
            found.append(collate(corpus, indices, pad=tokenizer.pad, bos=tokenizer.bos))
            if len(found) == count:
                return found
    raise SystemExit("too few batches; ask for fewer --rounds or --steps")


def take_turns(
    contenders: dict[str, subprocess.Popen[str]], batches: list[Batch], *, warm: int, rounds: int, minutes: float
) -> dict[str, list[float]]:
    """Tokens a second of each contender in each round; there is at least one."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.monotonic()
    for process in contenders.values():
        turn(process, 0, warm)
    steps = (len(batches) - warm) // rounds
    for number in range(rounds):
        if number and time.monotonic() - began > 60 * minutes:
            break
        start, stop = warm + number * steps, warm + (number + 1) * steps
        tokens = sum(int(batch.source_mask.sum() + batch.target_mask.sum()) for batch in batches[start:stop])
        for name, process in contenders.items():
            rates[name].append(tokens / turn(process, start, stop))
            print(f"round {number + 1}  {name}  {rates[name][-1]:,.0f} tokens a second", file=sys.stderr, flush=True)
    return rates


def turn(process: subprocess.Popen[str], start: int, stop: int) -> float:
    """The seconds that a contender takes for these batches."""
    print(start, stop, file=process.stdin, flush=True)
    return float(process.stdout.readline())  # type: ignore[union-attr]


def timed(step: Callable[[Batch], object], device: torch.device) -> Contender:
    """A contender that makes a step on each batch."""

    def contender(batches: Sequence[Batch]) -> float:
        began = time.perf_counter()
        for batch in batches:
            step(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    return contender


# The contenders


def dragoman(precision: str) -> Callable[..., Contender]:
    """The trainer itself, each of whose updates gets one of the batches."""

    def build(config: Config, bundle: Bundle, corpus: Corpus, folder: Path, device: torch.device, options: argparse.Namespace) -> Contender:
        keep_freed_memory()  # as `dragoman train` does
        settings = config.with_values(training={"precision": precision})
        torch.manual_seed(options.seed)
        own = Bundle(settings, build_model(settings.model), bundle.source_tokenizer, bundle.target_tokenizer)
        trainer = Trainer(own, corpus, run=folder / "run", log=RunLog(folder / "run", console=None, max_steps=1), device=device)
        if options.compile:
            trainer.model.encoder.compile(dynamic=True)
            trainer.model.decoder.compile(dynamic=True)
        trainer.model.train()

        def made(batch: Batch) -> Window:
            return make_window(corpus, [batch.pairs], own.target_tokenizer, ALONE)

        if device.type != "cuda":
            return timed(lambda batch: trainer._update(made(batch)), device)

        def contender(batches: Sequence[Batch]) -> float:
            began = time.perf_counter()
            for window in ahead(pinned(map(made, batches), device)):  # as its own training does on a GPU
                trainer._update(window)
            torch.cuda.synchronize(device)
            return time.perf_counter() - began

        return contender

    return build


class TutorialModel(nn.Module):
    """torch.nn.Transformer as its tutorials use it: embeddings, sinusoids, a linear output layer."""

    def __init__(self, config: Config, pad: int) -> None:
        super().__init__()
        model = config.model
        self.pad, self.scale = pad, math.sqrt(model.d_model)
        self.source = nn.Embedding(model.source_vocabulary, model.d_model, padding_idx=pad)
        self.target = nn.Embedding(model.target_vocabulary, model.d_model, padding_idx=pad)
        self.transformer = nn.Transformer(
            model.d_model, model.n_heads, model.encoder_layers, model.decoder_layers, model.d_ff, model.dropout, batch_first=True
        )
        self.output = nn.Linear(model.d_model, model.target_vocabulary)
        self.dropout = nn.Dropout(model.dropout)
        angles = torch.arange(1024)[:, None] / 10_000 ** (torch.arange(0, model.d_model, 2) / model.d_model)
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), 2).flatten(1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        table: Tensor = self.table  # type: ignore[assignment]
        later = torch.ones(target.size(1), target.size(1), dtype=torch.bool, device=target.device).triu(1)
        hidden = self.transformer(
            self.dropout(self.source(source) * self.scale + table[: source.size(1)]),
            self.dropout(self.target(target) * self.scale + table[: target.size(1)]),
            tgt_mask=later,
            src_key_padding_mask=source == self.pad,
            tgt_key_padding_mask=target == self.pad,
            memory_key_padding_mask=source == self.pad,
        )
        logits: Tensor = self.output(hidden)
        return logits


def loop(precision: str) -> Callable[..., Contender]:
    """The tutorial's loop over the same batches."""

    def build(config: Config, bundle: Bundle, corpus: Corpus, folder: Path, device: torch.device, options: argparse.Namespace) -> Contender:
        pad = bundle.target_tokenizer.pad
        model = TutorialModel(config, pad).to(device)
        criterion = nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=config.training.label_smoothing)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

        def step(batch: Batch) -> None:
            batch = batch.to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                logits = model(batch.source, batch.target_input)
                loss = criterion(logits.flatten(0, 1), batch.target_output.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return timed(step, device)

    return build


def marian(precision: str) -> Callable[..., Contender]:
    """Seq2SeqTrainer's own training step on a MarianMTModel of the same sizes, with its optimiser and no evaluation."""

    def build(config: Config, bundle: Bundle, corpus: Corpus, folder: Path, device: torch.device, options: argparse.Namespace) -> Contender:
        import accelerate  # noqa: F401  what Seq2SeqTrainer asks for
        from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

        class _Clock(TrainerCallback):  # type: ignore[misc]
            """The seconds of the last training, its preparations left out."""

            seconds = 0.0

            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                self.seconds = -time.perf_counter()

            def on_train_end(self, *args: Any, **kwargs: Any) -> None:
                self.seconds += time.perf_counter()

        model, pad = config.model, bundle.target_tokenizer.pad
        marian_model = MarianMTModel(
            MarianConfig(
                vocab_size=model.target_vocabulary, d_model=model.d_model, encoder_layers=model.encoder_layers,
                decoder_layers=model.decoder_layers, encoder_ffn_dim=model.d_ff, decoder_ffn_dim=model.d_ff,
                encoder_attention_heads=model.n_heads, decoder_attention_heads=model.n_heads, dropout=model.dropout,
                attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
                max_position_embeddings=1024, pad_token_id=pad, eos_token_id=bundle.target_tokenizer.eos,
                decoder_start_token_id=bundle.target_tokenizer.bos,
            )
        )  # fmt: skip
        trainer = Seq2SeqTrainer(
            model=marian_model,
            args=Seq2SeqTrainingArguments(
                output_dir=str(folder / f"marian-{precision}"), bf16=precision == "bf16", use_cpu=device.type == "cpu", report_to=[],
                label_smoothing_factor=config.training.label_smoothing, learning_rate=1e-4, max_steps=10**6, save_strategy="no",
                disable_tqdm=True, logging_strategy="no", per_device_train_batch_size=1, remove_unused_columns=False,
            ),
            data_collator=lambda items: items[0],
        )  # fmt: skip
        clock = _Clock()
        trainer.add_callback(clock)

        def contender(batches: Sequence[Batch]) -> float:
            trainer.train_dataset = [
                {
                    "input_ids": batch.source,
                    "attention_mask": batch.source_mask.long(),
                    "decoder_input_ids": batch.target_input,
                    "labels": batch.target_output.masked_fill(~batch.target_mask, -100),
                }
                for batch in batches
            ]
            trainer.args.max_steps = len(batches)
            trainer.train()
            return clock.seconds

        return contender

    return build


CONTENDERS: dict[str, Callable[..., Contender]] = {
    f"{name}-{precision}": build(precision)
    for name, build in (("dragoman", dragoman), ("loop", loop), ("marian", marian))
    for precision in ("fp32", "bf16")
} | {"dragoman-fp16": dragoman("fp16")}


# The result


@cache
def matrix_product_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Floating point operations a second that a large product reaches here, the best of a few; of one, where it takes a second."""
    rows, inner, columns = (8192, 4096, 4096) if device.type == "cuda" else (2048, 1024, 1024)
    left, right = torch.randn(rows, inner, dtype=dtype, device=device), torch.randn(inner, columns, dtype=dtype, device=device)
    best, several = math.inf, 10 if device.type == "cuda" else 1  # a GPU is asked for several, for to wait for one takes time too
    for _ in range(20):
        if 1.0 <= best < math.inf:  # a type that this processor has no instructions for
            break
        began = time.perf_counter()
        for _ in range(several):
            left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, (time.perf_counter() - began) / several)
    return 2 * rows * inner * columns / best


def operations_of_a_token(config: Config) -> float:
    """Of a step, for a source and a target token together, halved: 6 for each weight that the token meets; attention's own left out."""
    model = config.model
    halves = [model.model_copy(update={"encoder_layers": encoder, "decoder_layers": decoder}) for encoder, decoder in
              ((model.encoder_layers, 0), (0, model.decoder_layers), (0, 0))]  # fmt: skip
    encoder, decoder, neither = map(count_parameters, halves)
    return 6 * ((encoder - neither) + (decoder - neither) + model.target_vocabulary * model.d_model) / 2


def report(
    options: argparse.Namespace, config: Config, rates: dict[str, list[float]], memory: dict[str, dict[str, int]], device: torch.device
) -> dict[str, Any]:
    """What was found, with what it takes to find it again."""
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if any(name.endswith("fp16") for name in rates):
        types["fp16"] = torch.float16
    peaks = {name: matrix_product_rate(dtype, device) for name, dtype in types.items()}
    operations = operations_of_a_token(config)
    rows: dict[str, dict[str, Any]] = {}
    for name, measured in rates.items():
        rate, precision = statistics.median(measured), name.rpartition("-")[2]
        rows[name] = {
            "tokens_a_second": round(rate),
            "rounds": [round(each) for each in measured],
            "share_of_matrix_products": round(rate * operations / peaks[precision], 3),
            "peak_memory_bytes": memory[name],
        }
    best = max((name for name in rates if name.startswith("dragoman")), key=lambda name: rows[name]["tokens_a_second"], default=None)
    if best:
        ratios = {
            name: round(statistics.median(ours / theirs for ours, theirs in zip(rates[best], rates[name], strict=True)), 2)
            for name in rates
        }
    facts = {
        "command": " ".join(["python", "benchmarks/training_speed.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "compiled": options.compile,
        "torch": torch.__version__,
        "vocabulary": config.model.target_vocabulary,
        "batch_tokens": options.batch_tokens,
        "matrix_products_gflops": {name: round(peak / 1e9) for name, peak in peaks.items()},
        "contenders": rows,
    }
    if best:
        facts[f"{best}_is_faster_by"] = ratios
    return facts


if __name__ == "__main__":
    main()
