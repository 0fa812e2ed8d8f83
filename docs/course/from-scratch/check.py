"""How far the eight functions of exercises.py are: each is compared with Dragoman, and what is wrong is said in words.

    python check.py            all of them
    python check.py 3          the third only
    python check.py --file my_own.py

Exit status 0 when all that were asked for are right.
"""

import argparse
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

try:
    import torch
    from torch import Tensor, nn

    from dragoman.model import EncoderLayer, MultiHeadAttention, causal_mask, scaled_dot_product_attention, sinusoids
    from dragoman.training.loss import smoothed_cross_entropy
    from dragoman.training.schedule import paper_rate
except ModuleNotFoundError as missing:
    sys.exit(f"{sys.executable} has no {missing.name}; run check.py with the Python into which Dragoman is installed")

HERE = Path(__file__).resolve().parent


class Mistake(NamedTuple):
    """What one would get by a usual mistake, and what to say of it."""

    result: Any
    said: str


class Trial(NamedTuple):
    """One call of a function, what it must return, and usual mistakes."""

    arguments: Sequence[Any]
    expected: Any
    mistakes: Sequence[Mistake] = ()


def main() -> None:
    """Checks what the command line asks for and prints a line or two for each function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", type=int, nargs="?", choices=range(1, len(EXERCISES) + 1), help="only this one")
    parser.add_argument("--file", type=Path, default=HERE / "exercises.py", help="the file with the eight functions")
    options = parser.parse_args()
    module = read(options.file)
    chosen = range(1, len(EXERCISES) + 1) if options.number is None else [options.number]
    right = sum(report(number, module) for number in chosen)
    print(f"{right} of {len(chosen)} right" if len(chosen) > 1 else "")
    sys.exit(right != len(chosen))


def read(path: Path) -> ModuleType:
    """The file as a module; ends with one sentence if it cannot be read or has a slip in it."""
    if not path.is_file():
        sys.exit(f"{path}: there is no such file; write the functions in exercises.py, or name yours with --file")
    spec = importlib.util.spec_from_file_location("exercises", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path}: Python takes no file of this name as a program; give it a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        sys.exit(f"{path}, line {error.lineno or 1}: Python does not understand this line ({error.msg}); mend it first")
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a file that leaves would else look like one in which all is right
        line = line_of(error, path)
        sys.exit(f"{path}{f', line {line}' if line else ''}: reading the file ends in {named(error)}; mend it first")
    return module


def report(number: int, module: ModuleType) -> bool:
    """Prints whether one function is right, and what is wrong with it."""
    name, trials = EXERCISES[number - 1]
    function = getattr(module, name, None)
    complaint = "" if callable(function) else f"the file has no function {name}"
    for trial in () if complaint else trials():
        complaint = fault(function, trial, module)
        if complaint:
            break
    print(f"{number}. {name}: {complaint or 'right'}")
    return not complaint


def fault(function: Callable[..., Any], trial: Trial, module: ModuleType) -> str:
    """What is wrong with what the function makes of a trial; empty when nothing is."""
    arguments = [each.clone() if isinstance(each, Tensor) else each for each in trial.arguments]
    try:
        found = function(*arguments)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        path = Path(str(module.__file__))
        last = traceback.extract_tb(error.__traceback__)[-1].line or ""
        if isinstance(error, NotImplementedError) and last.startswith("raise"):  # PyTorch has such errors, too
            return "not written yet"
        line = line_of(error, path)
        if isinstance(error, KeyboardInterrupt):
            return f"it was stopped{f' in line {line}' if line else ''}; if it never came to an end, look for a loop that does not"
        return f"it ends in {named(error, line)}"
    if found is None:
        return "it returns nothing; end it with a return"
    try:
        complaint = difference(found, trial.expected)
        slip = next((mistake.said for mistake in trial.mistakes if complaint and not difference(found, mistake.result)), "")
    except Exception as error:
        return f"what it returns cannot be compared ({named(error)})"
    return slip or complaint


def named(error: BaseException, line: int = 0) -> str:
    """An error in one line: its kind, the line of the file, and the first line of what it says."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}{f' in line {line}' if line else ''}{f': {said}' if said else ''}"


def line_of(error: BaseException, path: Path) -> int:
    """The last line of the file that the error went through."""
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else 0


def difference(found: Any, expected: Any) -> str:
    """In which way a result is not the expected one; empty when it is, to 0.00001."""
    if isinstance(expected, tuple):
        if not isinstance(found, tuple) or len(found) != len(expected):
            return f"it must return {len(expected)} values, and returns {type(found).__name__}"
        places = ("first", "second", "third")
        complaints = ((place, difference(*pair)) for place, pair in zip(places, zip(found, expected, strict=True), strict=False))
        return next((f"of what it returns, the {place}: {complaint}" for place, complaint in complaints if complaint), "")
    if isinstance(expected, float):
        if not isinstance(found, int | float | Tensor) or (isinstance(found, Tensor) and found.numel() != 1):
            return f"it must return a number, and returns {type(found).__name__}"
        return "" if math.isclose(float(found), expected, rel_tol=1e-5) else f"{float(found):.6g} should be {expected:.6g}"
    if not isinstance(found, Tensor):
        return f"it must return a tensor, and returns {type(found).__name__}"
    if found.shape != expected.shape:
        return f"the shape is {tuple(found.shape)} and should be {tuple(expected.shape)}"
    if expected.dtype == torch.bool and found.dtype != torch.bool:
        return f"it must return True and False (torch.bool), and returns {found.dtype}"
    if not found.double().isfinite().all():
        return "some numbers are not finite (nan or inf)"
    wrong = (found.double() - expected.double()).abs() > 1e-5 * (1 + expected.double().abs().max())
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} numbers differ; at {list(place)} is {found[place]:.5g} and should be {expected[place]:.5g}"
    )


def numbers(*shape: int, seed: int = 1) -> Tensor:
    """Independent N(0, 1)."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention_trials() -> list[Trial]:
    """Without and with a mask."""
    query, key, value = numbers(3, 8), numbers(5, 8, seed=2), numbers(5, 4, seed=3)
    mask = torch.tensor([[True, True, False, False, True]] * 3)
    unscaled, turned = query @ key.T, (query @ key.T / math.sqrt(8)).softmax(0)
    mistakes = [
        Mistake((unscaled.softmax(-1) @ value, unscaled.softmax(-1)), "the scores are not divided by √d_k"),
        Mistake(((unscaled / 8).softmax(-1) @ value, (unscaled / 8).softmax(-1)), "the scores are divided by d_k instead of its root"),
        Mistake((turned @ value, turned), "the softmax goes over the queries; it must go over the keys, the last dimension"),
    ]
    plain = scaled_dot_product_attention(query, key, value)
    inverted = scaled_dot_product_attention(query, key, value, ~mask)
    masked = [
        Mistake(plain, "the mask is not used"),
        Mistake(inverted, "the mask is used the wrong way round: True means that a query may look"),
    ]
    return [
        Trial((query, key, value), plain, mistakes),
        Trial((query, key, value, mask), scaled_dot_product_attention(query, key, value, mask), masked),
    ]


def multi_head_trials() -> list[Trial]:
    """Four heads against `MultiHeadAttention`, whose matrices are those of x Wᵀ."""
    x, matrices = numbers(5, 8), [numbers(8, 8, seed=seed) for seed in range(2, 6)]

    def heads(count: int) -> Tensor:
        layer = MultiHeadAttention(8, count, bias=False)
        with torch.no_grad():
            for linear, matrix in zip((layer.w_q, layer.w_k, layer.w_v, layer.w_concat), matrices, strict=True):
                linear.weight.copy_(matrix.T)
            return layer(x[None], x[None], x[None])[0]

    identity, matrices[3] = matrices[3], torch.eye(8)
    unprojected = heads(4)
    matrices[3] = identity
    mistakes = [
        Mistake(heads(1), "it is one head: cut the projections into n_heads parts"),
        Mistake(unprojected, "the last product with w_o is missing"),
    ]
    return [Trial((x, *matrices, 4), heads(4), mistakes)]


def mask_trials() -> list[Trial]:
    """Of five positions."""
    right = causal_mask(5)
    said = "it shows the future and hides the past: the row is who looks, the column what is seen"
    return [
        Trial(
            (5,),
            right,
            [
                Mistake(right.T, said),
                Mistake(right.tril(-1), "a position may look at itself, too"),
                Mistake(~right, "True must mean that it may look"),
            ],
        ),
    ]


def positions_trials() -> list[Trial]:
    """Seven positions of width 6."""
    said = "all sines stand before all cosines; they must take turns"
    return [
        Trial(
            (7, 6),
            sinusoids(7, 6),
            [Mistake(sinusoids(7, 6, concatenated=True), said), Mistake(sinusoids(8, 6)[1:], "the first position is 0")],
        )
    ]


def layer_trials() -> list[Trial]:
    """Of a real layer's parts."""
    torch.manual_seed(5)
    layer, x = EncoderLayer(8, 2, 16, 0.0).eval(), numbers(4, 8)

    def attend(y: Tensor) -> Tensor:
        return layer.self_attn(y[None], y[None], y[None])[0]

    with torch.no_grad():
        nn.init.uniform_(layer.norm1.weight, 0.5, 1.5)
        nn.init.uniform_(layer.norm2.bias, -0.5, 0.5)
        expected = layer(x[None])[0]
        first = x + attend(layer.norm1(x))
        pre = first + layer.feed_forward(layer.norm2(first))
        bare = layer.norm1(attend(x))
        bare = layer.norm2(layer.feed_forward(bare))
        unnormed = x + attend(x)
        unnormed = unnormed + layer.feed_forward(unnormed)
    mistakes = [
        Mistake(pre, "the norm comes before each sub-layer; the paper has it after the sum (many models since 2019 do as you did)"),
        Mistake(bare, "the residual sums are missing: x + Sublayer(x)"),
        Mistake(unnormed, "the norms are missing"),
    ]
    return [
        Trial(
            (x, no_gradient(attend), no_gradient(layer.feed_forward), no_gradient(layer.norm1), no_gradient(layer.norm2)),
            expected,
            mistakes,
        )
    ]


def no_gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same function, whose result is a number and no more."""

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            return function(x)

    return call


def loss_trials() -> list[Trial]:
    """Four tokens of a vocabulary of seven, plain and smoothed."""
    logits, target = numbers(4, 7), torch.tensor([0, 3, 3, 6])
    plain, smoothed = (float(smoothed_cross_entropy(logits, target, epsilon=epsilon)) / 4 for epsilon in (0.0, 0.1))
    log_probs = logits.log_softmax(-1)
    others = log_probs.sum(-1) - log_probs[range(4), target]
    without_gold = float(-(0.9 * log_probs[range(4), target] + 0.1 / 6 * others).mean())
    mistakes = [
        Mistake(plain, "ε is not used"),
        Mistake(4 * smoothed, "it is the sum over the tokens; give the mean"),
        Mistake(without_gold, "ε is shared out among the wrong classes only (ε/(V - 1)); here every class gets ε/V"),
    ]
    return [
        Trial((logits, target, 0.0), plain, [Mistake(4 * plain, "it is the sum over the tokens; give the mean")]),
        Trial((logits, target, 0.1), smoothed, mistakes),
    ]


def rate_trials() -> list[Trial]:
    """The base model's, before, at and after the end of its warm-up."""
    rates = {step: paper_rate(step, d_model=512, warmup_steps=4000) for step in (1, 4000, 100_000)}
    usual = {
        1: [Mistake(512**-0.5, "the warm-up is missing")],
        4000: [],
        100_000: [Mistake(512**-0.5 * 100_000 * 4000**-1.5, "after the warm-up it must fall with the root of the step")],
    }
    return [Trial((step, 512, 4000), rate, usual[step]) for step, rate in rates.items()]


def beam_trials() -> list[Trial]:
    """Three hypotheses, vocabulary of six, beams of two and four."""
    log_probs, scores = numbers(3, 6).log_softmax(-1), torch.tensor([-1.0, -0.2, -3.0])
    trials = []
    for width in (2, 4):
        order = sorted(((float(scores[k] + log_probs[k, v]), k, v) for k in range(3) for v in range(6)), reverse=True)[:width]
        best, rows, tokens = zip(*order, strict=True)
        alone = log_probs.flatten().topk(width)
        mistakes = [Mistake((alone.values, alone.indices // 6, alone.indices % 6), "the scores so far are not added")]
        trials.append(Trial((log_probs, scores, width), (torch.tensor(best), torch.tensor(rows), torch.tensor(tokens)), mistakes))
    return trials


EXERCISES: list[tuple[str, Callable[[], list[Trial]]]] = [
    ("attention", attention_trials),
    ("multi_head", multi_head_trials),
    ("causal_mask", mask_trials),
    ("positions", positions_trials),
    ("encoder_layer", layer_trials),
    ("smoothed_loss", loss_trials),
    ("learning_rate", rate_trials),
    ("beam_step", beam_trials),
]

if __name__ == "__main__":
    main()
