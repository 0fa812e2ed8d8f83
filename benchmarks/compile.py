"""What torch.compile takes from a training step on this processor, and what it costs before.

    python benchmarks/compile.py --output benchmarks/compile.json

One model is trained as `dragoman train` does it, and one of the same weights has its layers compiled, for shapes that change. They take
turns on the same batches, on one thread, and the figure is the median of the ratios of their processor times, so that neighbours do not
matter. Both draw the same dropout, and the largest difference of their losses says whether they compute the same. The first updates count
apart: in them the layers are compiled, from nothing, which takes `compiling_seconds` of processor time with the C++ compiler's. Of those
after them some may have to compile again, for other shapes. Batches are those of `training_speed.py`. It all takes a quarter of an hour
of one core.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

from dragoman.bundle import Bundle
from dragoman.data.batching import Batch
from dragoman.data.corpus import Corpus
from dragoman.devices import keep_freed_memory
from dragoman.model.build import build_model
from dragoman.model.layers import DecoderLayer, EncoderLayer
from dragoman.training.distributed import ALONE
from dragoman.training.log import RunLog
from dragoman.training.trainer import Trainer
from dragoman.training.windows import make_window
from training_speed import chosen_batches, material

CPU = torch.device("cpu")


def main() -> None:
    """Measures each preset in each precision, prints what was found and writes it."""
    options = read_options()
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    keep_freed_memory()
    found: dict[str, Any] = {}
    for preset in options.preset:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"
            _, corpus, bundle = material(preset, options, Path(folder))
            batches = chosen_batches(corpus, bundle, options.warm + options.steps, options.batch_tokens)
            found[preset] = {"parameters": sum(parameter.numel() for parameter in bundle.model.parameters())}
            for precision in options.precision:
                torch._dynamo.reset()
                counters.clear()
                trainers = [trainer(bundle, corpus, Path(folder), precision) for _ in range(2)]
                compile_layers(trainers[1])
                found[preset][precision] = measured(trainers, corpus, batches, options)
                print(preset, precision, json.dumps(found[preset][precision], indent=1), file=sys.stderr, flush=True)
    facts = {
        "command": " ".join(["python", "benchmarks/compile.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "device": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,
        "torch": torch.__version__,
        "batch_tokens": options.batch_tokens,
        "steps": options.steps,
        "presets": found,
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["tiny", "base"], help="one after the other")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--warm", type=int, default=6, help="updates in which the layers are compiled")
    parser.add_argument("--steps", type=int, default=12, help="updates that are compared after those")
    parser.add_argument("--vocabulary", type=int, default=0, help="generated pairs with so many words a side, instead of Multi30k")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the result is written, as JSON")
    return parser.parse_args()


def trainer(bundle: Bundle, corpus: Corpus, folder: Path, precision: str) -> Trainer:
    """A trainer of the bundle's weights; each has a model of its own."""
    settings = bundle.config.with_values(training={"precision": precision})
    model = build_model(settings.model)
    model.load_state_dict(bundle.model.state_dict())
    own = Bundle(settings, model, bundle.source_tokenizer, bundle.target_tokenizer)
    made = Trainer(own, corpus, run=folder / "run", log=RunLog(folder / "run", console=None, max_steps=1), device=CPU)
    made.model.train()
    return made


def compile_layers(made: Trainer) -> None:
    """All layers of encoder and decoder; layers of one kind share what is compiled."""
    for module in made.model.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            module.compile(dynamic=True)


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measured(trainers: list[Trainer], corpus: Corpus, batches: list[Batch], options: argparse.Namespace) -> dict[str, Any]:
    """The processor time of compiled steps as a part of plain ones', and the seconds, recompilations and losses on the way."""
    seconds: list[list[float]] = [[], []]
    losses: list[list[float]] = [[], []]
    began, compiling, graphs = processor_seconds(), 0.0, 0
    for number, batch in enumerate(batches):
        for place in (0, 1) if number % 2 else (1, 0):
            each = trainers[place]
            window = make_window(corpus, [batch.pairs], each.bundle.target_tokenizer, ALONE)
            torch.manual_seed(number)
            before = each.totals.smoothed
            start = time.process_time()
            each._update(window)
            seconds[place].append(time.process_time() - start)
            losses[place].append(each.totals.smoothed - before)
        if number == options.warm - 1:
            compiling = processor_seconds() - began - 2 * sum(seconds[0])  # a compiled step takes about as long as a plain one
            graphs = counters["stats"]["unique_graphs"]
    plain, compiled = (each[options.warm :] for each in seconds)
    ratios = [ours / theirs for ours, theirs in zip(compiled, plain, strict=True)]
    return {
        "compiled_over_plain": round(statistics.median(ratios), 3),
        "quartiles": [round(each, 3) for each in statistics.quantiles(ratios)],
        "plain_seconds": round(statistics.median(plain), 4),
        "compiled_seconds": round(statistics.median(compiled), 4),
        "compiling_seconds": round(compiling),
        "graphs": graphs,
        "graphs_compiled_later": counters["stats"]["unique_graphs"] - graphs,
        "graph_breaks": sum(counters["graph_break"].values()),
        "reasons": sorted({reason.strip().splitlines()[0] for reason in counters["graph_break"]}),
        "largest_difference_of_losses": max(abs(a / b - 1) for a, b in zip(*losses, strict=True)),
    }


if __name__ == "__main__":
    main()
