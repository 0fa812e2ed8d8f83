"""How much faster several threads translate a text when they search batches side by side than when they share each product.

    python benchmarks/side_by_side.py --model RUN --preset base --output benchmarks/side_by_side.json

The sentences are Multi30k's test_2016_flickr in the published byte pairs, from DRAGOMAN_DATA (or ../shared/data); RUN is a model of them,
as `python benchmarks/multi30k.py bpe --runs FOLDER` leaves it. A preset's weights are fresh, and each of its outputs has 16 tokens. Both
ways take turns in one process, with all of PyTorch's threads, and the figure is the median of the rounds: seconds of the one way over those
of the other. Their outputs must be the same.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from decoding_speed import FORCED, lines_of, the_model
from dragoman.decoding import search
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.side_by_side import workers_for
from dragoman.decoding.translate import Translator
from dragoman.devices import keep_freed_memory

SENTENCES = {5: 1000, 1: 3000}  # by beam; the thousand lines of the text are repeated


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a run folder of the published byte pairs")
    parser.add_argument("--preset", nargs="*", default=[], help="the sizes of models with fresh weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="where the result is written, as JSON")
    options = parser.parse_args()
    keep_freed_memory()  # as `dragoman translate` does
    lines = [line.split() for line in lines_of("test.2016.en")]
    models = ([("trained", options.model)] if options.model else []) + [(preset, None) for preset in options.preset]
    facts = {
        "command": " ".join(["python", "benchmarks/side_by_side.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "device": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "faster": {name: faster(name, path, lines, options) for name, path in models},
    }
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def faster(name: str, path: Path | None, lines: list[list[str]], options: argparse.Namespace) -> dict[str, float]:
    """Seconds of one batch after another over seconds side by side, for each beam."""
    bundle = the_model(argparse.Namespace(model=path, preset=name), lines)
    translator = Translator(bundle)
    forced: dict[str, Any] = {} if path else {"max_length": FORCED, "options": SearchOptions(min_length=FORCED)}
    fewer = 1 if path else 2  # a preset may be large
    ratios = {}
    for beam, count in SENTENCES.items():
        texts = [" ".join(lines[place % len(lines)]) for place in range(count // fewer)]
        ways: dict[str, list[float]] = {"shared": [], "side by side": []}
        outputs: dict[str, list[str]] = {}
        for _ in range(options.rounds + 1):
            for way, seconds in ways.items():
                workers = workers_for if way == "side by side" else lambda rows, output: 1
                with mock.patch.object(search, "workers_for", workers):
                    began = time.perf_counter()
                    outputs[way] = [each.text for each in translator.translate(texts, beam=beam, **forced)]
                    seconds.append(time.perf_counter() - began)
        if outputs["shared"] != outputs["side by side"]:
            raise SystemExit(f"{name}, beam {beam}: the outputs differ")
        medians = [statistics.median(seconds[1:]) for seconds in ways.values()]  # the first warms up
        ratios[f"beam {beam}"] = round(medians[0] / medians[1], 2)
        print(f"{name}  beam {beam}: {ratios[f'beam {beam}']}", file=sys.stderr, flush=True)
    return ratios


if __name__ == "__main__":
    main()
