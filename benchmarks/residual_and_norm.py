"""What training does without the residual sums, without the norms, and without both, at growing depths.

    python benchmarks/residual_and_norm.py --output benchmarks/residual_and_norm.json

An encoder learns the smallest task in which a position needs what it has read itself and something from elsewhere: the first sign says "as
it is" or "swapped", and every other position must say its own sign, or its partner's. There is no setting that takes the sums or the norms
away; the script puts another function around the sub-layers of a model that is built as always. All variants have the same first weights,
batches and learning rate, with a warm-up of 20 updates. `losses` are means over a tenth of the updates each, in nats; guessing among eight
signs is 2.08. `gradient` is the size of the first update's gradient, as the root of its squares' sum, in the first layer's feed-forward
network.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import ModelConfig
from dragoman.model import build_model
from dragoman.model.layers import Residual, residual

ORDER, FIRST, SIGNS, LENGTH, BATCH, WARM_UP = 4, 6, 8, 8, 32, 20
"""The first of the two ids that say what to do, the first of the signs, and so on."""
SIZES = {"d_model": 32, "d_ff": 64, "n_heads": 4, "dropout": 0.0, "source_vocabulary": FIRST + SIGNS, "target_vocabulary": FIRST + SIGNS}


def without_residual(x: Tensor, sublayer: Callable[[Tensor], Tensor], *, norm: nn.Module, dropout: nn.Module) -> Tensor:
    """LayerNorm(Dropout(Sublayer(x)))."""
    normed: Tensor = norm(dropout(sublayer(x)))
    return normed


def without_norm(x: Tensor, sublayer: Callable[[Tensor], Tensor], *, norm: nn.Module, dropout: nn.Module) -> Tensor:
    """x + Dropout(Sublayer(x))."""
    summed: Tensor = x + dropout(sublayer(x))
    return summed


def without_both(x: Tensor, sublayer: Callable[[Tensor], Tensor], *, norm: nn.Module, dropout: nn.Module) -> Tensor:
    """Dropout(Sublayer(x))."""
    found: Tensor = dropout(sublayer(x))
    return found


VARIANTS: dict[str, Residual] = {
    "as in the paper": residual,
    "without the sums": without_residual,
    "without the norms": without_norm,
    "without both": without_both,
}


def make(around: Residual, layers: int) -> nn.Module:
    """A fresh encoder-only model with that around each sub-layer."""
    model = build_model(ModelConfig(**SIZES, architecture="encoder-only", encoder_layers=layers), seed=1)
    for layer in model.encoder.layers:
        layer.around = around
    return model


def sequences(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many sequences (count, T) of ids, of which the first is an order, and what is to be said of the others (count, T - 1)."""
    signs = torch.randint(FIRST, FIRST + SIGNS, (count, LENGTH), generator=random)
    signs[:, 0] = torch.randint(ORDER, FIRST, (count,), generator=random)
    partners = FIRST + ((signs - FIRST) ^ 1)
    return signs, torch.where(signs[:, :1] == ORDER, signs, partners)[:, 1:]


def learn(around: Residual, layers: int, rate: float, updates: int) -> dict[str, Any]:
    """Trains for so many updates and tells how it went."""
    model, random, losses, gradient = make(around, layers), torch.Generator().manual_seed(1), [], 0.0
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for update in range(1, updates + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, update / WARM_UP)
        signs, said = sequences(BATCH, random)
        loss = F.cross_entropy(model(signs)[:, 1:].flatten(0, 1), said.flatten())
        optimizer.zero_grad()
        loss.backward()
        gradient = gradient or model.encoder.layers[0].feed_forward[0].weight.grad.norm().item()
        optimizer.step()
        losses.append(loss.item())
    signs, said = sequences(500, torch.Generator().manual_seed(2))
    with torch.no_grad():
        right = (model.eval()(signs)[:, 1:].argmax(-1) == said).double().mean().item()
    tenth = max(updates // 10, 1)
    means = [round(sum(part) / len(part), 3) for part in (losses[start : start + tenth] for start in range(0, updates, tenth))]
    return {"right": round(right, 3), "gradient": float(f"{gradient:.2e}"), "losses": means}


def at_depth(layers: int, options: argparse.Namespace) -> dict[str, Any]:
    """Of every variant."""
    found = {}
    for name, around in VARIANTS.items():
        found[name] = learn(around, layers, options.rate, options.updates)
        print(f"{layers} layers, {name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Trains, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 6, 12])
    parser.add_argument("--updates", type=int, default=120)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate after the warm-up")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = {
        "command": " ".join(["python", "benchmarks/residual_and_norm.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": 1,
        "torch": torch.__version__,
        "updates": options.updates,
        "rate": options.rate,
        "depths": {str(layers): at_depth(layers, options) for layers in options.layers},
    }
    text = json.dumps(facts, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
