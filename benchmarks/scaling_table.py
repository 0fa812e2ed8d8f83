"""What the paper's base and big models cost on data of WMT14's size, on 1, 8 and 64 GPUs: arithmetic, and what the data path delivers.

    python benchmarks/scaling_table.py

Nothing here is measured but the data path (benchmarks/data_path.json). The operations are counted from the sizes of the model; the rate of
a GPU is its maker's for dense bfloat16, and the share of it that a training reaches is assumed: benchmarks/training_speed.py prints the
share that is measured, and the rate that it is a share of, for --share and --peak. docs/scaling.md quotes the tables.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.explain.cost import SUSTAINED_TFLOPS, operations_of_pair, paper_flops, total_operations
from dragoman.presets import count_parameters, resolve_config

HERE = Path(__file__).resolve().parent
MODELS = ("base", "big")
PEAKS = {"A100": 312.0, "H100": 989.0}
"""TFLOP/s of dense products in bfloat16, from the data sheets of the A100 (80 GB SXM) and the H100 (SXM)."""
PAPER = {"base": 12.0, "big": 84.0}
"""Hours that the paper's 100,000 and 300,000 steps took on 8 P100 (5.2: 3.5 days are 84 hours)."""
PAIRS, DEVICES = 4_500_000, (1, 8, 64)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, nargs="+", default=[0.2, 0.35, 0.5], help="parts of the peak rate that are reached")
    parser.add_argument("--peak", type=float, help="TFLOP/s of one GPU, instead of an A100's and an H100's")
    parser.add_argument("--length", type=float, default=30.0, help="mean tokens of a sentence")
    options = parser.parse_args()
    peaks = {"GPU": options.peak} if options.peak else PEAKS
    measured = json.loads((HERE / "data_path.json").read_text(encoding="utf-8"))
    print("\n\n".join([
        work_table(options.length), hours_table(peaks, options.share, options.length), update_table(peaks, options.share, options.length),
        data_table(measured, peaks, options.share, options.length),
    ]))  # fmt: skip


def whole(name: str, length: float) -> float:
    """Operations of the whole training of a preset."""
    return total_operations(resolve_config(name), length)


def work_table(length: float) -> str:
    """Parameters, tokens, operations, and the share of its GPUs that the paper reached."""
    rows = []
    for name in MODELS:
        config = resolve_config(name)
        tokens = config.training.max_steps * config.training.batch_budget
        products, attention = operations_of_pair(config.model, length)
        total = whole(name, length)
        reached = total / paper_flops(hours=PAPER[name], gpus=8, tflops=SUSTAINED_TFLOPS["P100"])
        rows.append([
            name, f"{count_parameters(config.model) / 1e6:.1f} M", f"{config.training.max_steps:,}", f"{2 * tokens / 1e9:.1f} · 10⁹",
            f"{tokens / (PAIRS * length):.1f}", f"{attention / (products + attention):.1%}", f"{total:.2g}", f"{reached:.0%}",
        ])  # fmt: skip
    head = [
        "",
        "parameters",
        "steps",
        "source + target tokens",
        "epochs",
        "attention's own part",
        "operations",
        "share that the paper's 8 P100 reached",
    ]
    return table(head, rows)


def hours_table(peaks: dict[str, float], shares: Sequence[float], length: float) -> str:
    """Hours of the whole training."""
    rows = [
        [
            f"{name}, {devices} × {gpu}",
            *(readable_hours(whole(name, length) / (devices * peak * 1e12 * share)) for share in shares),
        ]
        for name in MODELS
        for gpu, peak in peaks.items()
        for devices in DEVICES
    ]
    return table(["", *(f"{share:.0%} of the peak" for share in shares)], rows)


def update_table(peaks: dict[str, float], shares: Sequence[float], length: float) -> str:
    """What an update of the paper's size leaves each GPU to do, and what the sum of the gradients must keep up with."""
    rows, share = [], shares[len(shares) // 2]
    for name in MODELS:
        config = resolve_config(name)
        gradients = 4 * count_parameters(config.model)
        for gpu, peak in peaks.items():
            for devices in DEVICES:
                seconds = whole(name, length) / config.training.max_steps / (devices * peak * 1e12 * share)
                moved = 2 * gradients * (devices - 1) / devices
                rows.append([
                    f"{name}, {devices} × {gpu}", f"{2 * config.training.batch_budget / devices:,.0f}", f"{1000 * seconds:.3g} ms",
                    f"{moved / 1e6:,.0f} MB" if moved else "none", f"{moved / seconds / 1e9:,.0f} GB/s" if moved else "",
                ])  # fmt: skip
    return table(
        ["", "tokens of a GPU", f"computing, at {share:.0%}", "gradients that each moves", "rate at which that takes as long"], rows
    )


def data_table(measured: dict[str, Any], peaks: dict[str, float], shares: Sequence[float], length: float) -> str:
    """What each GPU wants of the data path, and at how many GPUs planning an epoch takes a twentieth of computing it."""
    rate, plan = measured["collated_tokens_a_second"], measured["seconds_to_plan_an_epoch"]
    rows = []
    for name in MODELS:
        config = resolve_config(name)
        for gpu, peak in peaks.items():
            wanted = peak * 1e12 * shares[-1] * 2 * length / sum(operations_of_pair(config.model, length))
            epoch = 2 * PAIRS * length / wanted
            rows.append(
                [f"{name}, {gpu}", f"{wanted / 1e6:.2f} M", f"{rate / 1e6:.1f} M", f"{wanted / rate:.0%}", f"{epoch / plan / 20:.0f}"]
            )
    head = [
        "",
        f"tokens a second for a GPU at {shares[-1]:.0%}",
        "that one core makes",
        "of a core busy",
        "GPUs at which planning takes 5 % more",
    ]
    return table(head, rows)


def readable_hours(seconds: float) -> str:
    """Days from two on, hours, or minutes below one hour."""
    hours, minutes = seconds / 3600, seconds / 60
    if hours >= 1:
        return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} h"
    return f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.1f} min"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


if __name__ == "__main__":
    main()
