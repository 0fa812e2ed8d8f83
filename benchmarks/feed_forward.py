"""What a model can say without feed-forward networks, with narrow and with wide ones.

    python benchmarks/feed_forward.py --output benchmarks/feed_forward.json

Attention mixes what was read, with weights that add up to 1. Here mixing is not enough: every position must say the sum of its own number
and the first one, modulo 8. There is no setting that takes the feed-forward networks away; the script puts nothing in their place. All
models have d_model 32, four heads, the same batches and the same learning rate. Guessing has one of eight right.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model import build_model

NUMBERS, LENGTH, BATCH, WARM_UP, RATE = 8, 8, 32, 20, 2e-3


class Nothing(nn.Module):
    """In place of a feed-forward network: it adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros of the same shape."""
        return torch.zeros_like(x)


def make(layers: int, width: int) -> nn.Module:
    """A fresh encoder-only model with feed-forward networks of so many units, or none."""
    sizes = {"d_model": 32, "n_heads": 4, "dropout": 0.0, "source_vocabulary": NUMBERS, "target_vocabulary": NUMBERS}
    model = build_model(ModelConfig(**sizes, d_ff=width or 1, architecture="encoder-only", encoder_layers=layers), seed=1)
    for layer in model.encoder.layers if not width else ():
        layer.feed_forward = Nothing()
    return model


def sums(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many sequences (count, T) of numbers, and each number's sum with the first of its sequence, modulo 8."""
    numbers = torch.randint(0, NUMBERS, (count, LENGTH), generator=random)
    return numbers, (numbers + numbers[:, :1]) % NUMBERS


def right(width: int, layers: int, moments: list[int]) -> dict[str, float]:
    """The share of right answers at sequences never seen, after so many updates each."""
    model, random, found = make(layers, width), torch.Generator().manual_seed(1), {}
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for update in range(1, max(moments) + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, update / WARM_UP)
        numbers, said = sums(BATCH, random)
        optimizer.zero_grad()
        F.cross_entropy(model(numbers).flatten(0, 1), said.flatten()).backward()
        optimizer.step()
        if update in moments:
            numbers, said = sums(500, torch.Generator().manual_seed(2))
            with torch.no_grad():
                found[str(update)] = round((model(numbers).argmax(-1) == said).double().mean().item(), 3)
    return found


def main() -> None:
    """Trains, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--widths", type=int, nargs="+", default=[0, 8, 32, 128], help="d_ff; 0 for no feed-forward network")
    parser.add_argument("--updates", type=int, nargs="+", default=[100, 200, 300, 600, 1200], help="when it is looked")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/feed_forward.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "layers": options.layers,
        "right": {str(width): right(width, options.layers, options.updates) for width in options.widths},
    }
    text = json.dumps(facts, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
