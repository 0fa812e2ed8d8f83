"""How far back a cause may lie: one sign is read, then n others that say nothing, and then the first is asked for.

    python benchmarks/distance.py --output benchmarks/distance.json

Three models of about as many weights learn it at growing distances, each for the same seconds of one processor and from nothing: LSTMs that
read forwards and answer from what they carry; the recurrent model of dragoman.model, whose answer may attend to all that was read (Luong et
al. 2015); and a Transformer with the causal mask. All see the same batches. A training ends early when twenty batches in a row have a loss
below a hundredth; each kind has the best of --rates at each distance, and says which that was. What counts are the answers to 500 new
sequences; guessing has one of eight right. `waiting` is the longest chain of matrix products, each of which needs the one before, in a
layer that reads the sequence: Table 1's column.
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
from dragoman.explain.cost import recurrent_cost, self_attention_cost
from dragoman.model import build_model

NAMES, NOISE, FIRST = 8, 8, 5
"""Signs that may be asked for, signs that say nothing, and the first id after the special ones."""
VOCABULARY = FIRST + NAMES + NOISE
WIDTH, BATCH, LEARNT = 64, 32, 0.01
SIZES = {"d_model": WIDTH, "dropout": 0.0, "source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
KINDS = ("LSTM", "LSTM with attention", "Transformer")


class Reader(nn.Module):
    """Two layers of LSTM cells, forwards; the answer is made of the last output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.cells = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY)
        for name, bias in self.cells.named_parameters():
            if name.startswith("bias_ih"):
                nn.init.ones_(bias[WIDTH : 2 * WIDTH])  # gates that begin open remember longer: the usual help

    def forward(self, signs: Tensor) -> Tensor:
        """signs (B, T) of ids; returns the logits of the answer (B, V)."""
        answer: Tensor = self.output(self.cells(self.embedding(signs))[0][:, -1])
        return answer


class Asked(nn.Module):
    """A model of dragoman.model, and how its answer is taken."""

    def __init__(self, config: ModelConfig, answer: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.answer = build_model(config, seed=1), answer

    def forward(self, signs: Tensor) -> Tensor:
        """As `Reader`."""
        return self.answer(self.model, signs)


def make(kind: str) -> nn.Module:
    """A fresh model."""
    torch.manual_seed(1)
    if kind == "LSTM":
        return Reader()
    if kind == "Transformer":
        config = ModelConfig(**SIZES, architecture="decoder-only", d_ff=2 * WIDTH, n_heads=4, decoder_layers=2)
        return Asked(config, lambda model, signs: model(signs)[:, -1])
    config = ModelConfig(**SIZES, architecture="recurrent", scale_embedding=False, encoder_layers=1, decoder_layers=1)
    return Asked(config, lambda model, signs: model(signs, torch.ones_like(signs[:, :1]))[:, -1])


def sequences(count: int, distance: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """So many sequences (count, 1 + distance) of ids, and the first of each."""
    signs = torch.randint(FIRST + NAMES, VOCABULARY, (count, 1 + distance), generator=random)
    signs[:, 0] = torch.randint(FIRST, FIRST + NAMES, (count,), generator=random)
    return signs, signs[:, 0]


def learn(kind: str, distance: int, rate: float, seconds: float) -> dict[str, Any]:
    """Trains for so long, and tells how much of it was right in the end."""
    model, random = make(kind), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98), eps=1e-9)
    begun, updates, in_a_row = time.process_time(), 0, 0
    while in_a_row < 20 and time.process_time() - begun < seconds:
        signs, names = sequences(BATCH, distance, random)
        loss = F.cross_entropy(model(signs), names)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        updates, in_a_row = updates + 1, in_a_row + 1 if loss.item() < LEARNT else 0
    used = time.process_time() - begun
    signs, names = sequences(500, distance, torch.Generator().manual_seed(2))
    with torch.no_grad():
        right = (model.eval()(signs).argmax(-1) == names).double().mean().item()
    found = {"right": round(right, 3), "learnt": in_a_row == 20, "seconds": round(used, 1), "updates": updates, "rate": rate}
    print(f"{kind}, distance {distance}, rate {rate:g}: {found}", file=sys.stderr, flush=True)
    return found


def best(kind: str, distance: int, options: argparse.Namespace) -> dict[str, Any]:
    """The best of the rates: the most right, then the soonest."""
    found = [learn(kind, distance, rate, options.seconds) for rate in options.rates]
    return max(found, key=lambda each: (each["right"], -each["seconds"]))


def main() -> None:
    """Trains, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distances", type=int, nargs="+", default=[4, 8, 16, 32, 64, 128])
    parser.add_argument("--seconds", type=float, default=10, help="of the processor, for each training")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3], help="learning rates that are tried")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = {
        "command": " ".join(["python", "benchmarks/distance.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": 1,
        "torch": torch.__version__,
        "seconds": options.seconds,
        "parameters": {kind: sum(weight.numel() for weight in make(kind).parameters()) for kind in KINDS},
        "rows": [
            {
                "distance": distance,
                "waiting": {
                    "recurrent": recurrent_cost(1 + distance, WIDTH).sequential,
                    "self-attention": self_attention_cost(1 + distance, WIDTH).sequential,
                },
                **{kind: best(kind, distance, options) for kind in KINDS},
            }
            for distance in options.distances
        ],
    }
    text = json.dumps(facts, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
