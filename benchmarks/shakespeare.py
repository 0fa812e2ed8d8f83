"""Tiny Shakespeare by characters in the two sizes that nanoGPT publishes: exact validation loss beside its estimate.

    python benchmarks/shakespeare.py --output benchmarks/shakespeare.cpu.json
    python benchmarks/shakespeare.py --configuration gpu --output benchmarks/shakespeare.gpu.json

The first 90 % of the characters are learnt from, the last 10 % are for validation. nanoGPT publishes 1.88 (CPU, 2,000 updates) and 1.4697
(GPU, the best of 5,000), each the mean of some blocks at random places; the exact loss here is over all 111,540 characters, each predicted
once, in blocks of the context's length. `published` are nanoGPT's settings; `changed` is the same but for the settings in CHANGED. The data
are looked for in DRAGOMAN_DATA or ../shared/data.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
TEXT = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "lm" / "tinyshakespeare.txt"
PUBLISHED = {"cpu": 1.88, "gpu": 1.4697}
CHANGED = {
    "cpu": ["model.positions=rotary", "training.learning_rate=4e-3"],
    "gpu": ["model.positions=rotary"],
}
ROUNDS, UPDATES = 7, 10


def main() -> None:
    """Trains with the published settings and the changed ones, times an update, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configuration", choices=sorted(PUBLISHED), default="cpu")
    parser.add_argument(
        "--only", choices=("published", "changed", "time"), help="one part, put beside those that --output has; all when not given"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to both trainings")
    parser.add_argument("--runs", type=Path, help="where the run folders stay; otherwise they go")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if not TEXT.is_file():
        sys.exit(f"{TEXT}: not there; set DRAGOMAN_DATA to a folder with lm/tinyshakespeare.txt")
    preset = f"nano-{options.configuration}"
    made = {"command": " ".join(["python", "benchmarks/shakespeare.py", *sys.argv[1:]]), "date": time.strftime("%Y-%m-%d")}
    made |= {"machine": platform.machine(), "threads": str(torch.get_num_threads())}
    known = json.loads(options.output.read_text("utf-8")) if options.only and options.output and options.output.is_file() else {}
    facts: dict[str, Any] = {**known, "published_loss": PUBLISHED[options.configuration]}
    with tempfile.TemporaryDirectory() as passing:
        folder = options.runs or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        write_split(folder)
        for name, settings in (("published", []), ("changed", CHANGED[options.configuration])):
            if options.only in (None, name):
                facts[name] = made | train(folder, folder / f"{preset}-{name}", preset, settings + options.set)
        if options.only in (None, "time"):
            facts["update"] = made | compare_time(folder, preset)
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def write_split(folder: Path) -> None:
    """train.txt and valid.txt: the first nine tenths of the characters and the rest."""
    text = TEXT.read_text(encoding="utf-8")
    cut = int(0.9 * len(text))
    (folder / "train.txt").write_text(text[:cut], encoding="utf-8", newline="\n")
    (folder / "valid.txt").write_text(text[cut:], encoding="utf-8", newline="\n")


def train(folder: Path, run: Path, preset: str, settings: list[str]) -> dict[str, Any]:
    """A training through the command line; the loss at its end and at its best, exact and estimated."""
    sets = [part for setting in settings for part in ("--set", setting)]
    data = ["--train", str(folder / "train.txt"), "--valid", str(folder / "valid.txt")]
    command = [sys.executable, "-m", "dragoman", "train", "en", "--preset", preset, *data, "--out", str(run), *sets]
    subprocess.run(command, check=True)
    records = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    evaluations = [record for record in records if record["t"] == "eval"]
    names = ("step", "nll", "bits_per_character", "sampled", "sampled_error")
    best = min(evaluations, key=lambda record: float(record["nll"]))
    document = json.loads((run / "run.json").read_bytes())
    return {
        "settings": settings,
        "parameters": document["parameters"],
        "precision": document["precision"],
        "seed": document["seed"],
        "exact_by_step": {record["step"]: round(record["nll"], 4) for record in evaluations},
        "last": {name: round(evaluations[-1][name], 4) for name in names},
        "best": {name: round(best[name], 4) for name in names},
    }


def compare_time(folder: Path, preset: str) -> dict[str, Any]:
    """The seconds of an update by Dragoman and by a plain PyTorch loop of the same model, taken by turns in this process."""
    ours, plain = dragoman_updates(folder, preset), plain_updates(folder, preset)
    ours(2), plain(2)
    rounds = [(ours(UPDATES), plain(UPDATES)) for _ in range(ROUNDS)]
    seconds = {name: statistics.median(each[place] for each in rounds) for place, name in enumerate(("dragoman", "plain_loop"))}
    return {
        **{name: round(value, 5) for name, value in seconds.items()},
        "plain_over_dragoman": round(statistics.median(second / first for first, second in rounds), 3),
        "rounds": [[round(each, 5) for each in pair] for pair in rounds],
    }


def dragoman_updates(folder: Path, preset: str) -> Any:
    """A function that makes so many updates of a `Trainer` and returns the seconds of one."""
    from dragoman.bundle import Bundle
    from dragoman.model.build import build_model
    from dragoman.presets import resolve_config
    from dragoman.training.log import RunLog
    from dragoman.training.run import create_run, prepare
    from dragoman.training.state import Progress
    from dragoman.training.totals import Totals
    from dragoman.training.trainer import Trainer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    config = resolve_config(preset, flags={"data": {"source": "en", "train": [str(folder / "train.txt")]}})
    create_run(run, config, [])
    prepared = prepare(run, config)
    tokenizer = prepared.target_tokenizer
    bundle = Bundle(prepared.config, build_model(prepared.config.model, seed=1), tokenizer, tokenizer)
    trainer = Trainer(bundle, prepared.corpus, run=run, log=RunLog(run, console=None, max_steps=1), device=device)

    def update(count: int) -> float:
        trainer.progress, trainer.totals = Progress(bfloat16=trainer.progress.bfloat16), Totals()
        return sum(made.seconds for made in trainer.rehearse(updates=count, seconds=1e9)) / count

    return update


class Block(nn.Module):
    """A layer of nanoGPT's model, without biases."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D), each position blind to later ones."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True, dropout_p=self.rate if self.training else 0.0)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        hidden: Tensor = x + self.dropout(self.narrow(F.gelu(self.wide(self.norm_2(x)))))
        return hidden


def plain_updates(folder: Path, preset: str) -> Any:
    """The same of a loop that a reader of PyTorch's documents would write: blocks at random places, AdamW, clipped gradients."""
    from dragoman.presets import resolve_config

    config = resolve_config(preset)
    model, training = config.model, config.training
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = (folder / "train.txt").read_text(encoding="utf-8")
    known = {character: place for place, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([known[character] for character in text])
    width, length, rows = model.d_model, model.max_positions, training.batch_budget // model.max_positions
    embedding, positions = nn.Embedding(len(known), width), nn.Embedding(length, width)
    blocks = nn.Sequential(
        *(Block(width, model.n_heads, model.dropout) for _ in range(model.decoder_layers)), nn.LayerNorm(width, bias=False)
    )
    whole = nn.ModuleList([embedding, positions, blocks]).to(device)
    for parameter in whole.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    groups = [
        {"params": [each for each in whole.parameters() if each.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [each for each in whole.parameters() if each.dim() == 1], "weight_decay": 0.0},
    ]
    betas = (training.adam_beta1, training.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, fused=True)
    narrow = device.type == "cuda"

    def update(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            starts = torch.randint(len(ids) - length, (rows,)).tolist()
            seen = torch.stack([ids[start : start + length] for start in starts]).to(device)
            right = torch.stack([ids[start + 1 : start + length + 1] for start in starts]).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=narrow):
                hidden = blocks(embedding(seen) + positions(torch.arange(length, device=device)))
                loss = F.cross_entropy((hidden @ embedding.weight.t()).flatten(0, 1), right.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(whole.parameters(), training.clip_norm)
            optimizer.step()
            loss.item()
        return (time.perf_counter() - began) / count

    return update


if __name__ == "__main__":
    main()
