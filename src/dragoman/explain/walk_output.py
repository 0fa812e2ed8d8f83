"""The walk, steps 15 to 20: from hidden states to tokens, and how the weights came to be (Sections 3.4, 5.3, 5.4 and 6.1)."""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import nn

from dragoman.config import TrainingConfig
from dragoman.decoding.beam import length_penalty
from dragoman.explain import equations as again
from dragoman.explain import mathml as m
from dragoman.explain.answer import Explanation, ScoredTarget, piece_of
from dragoman.explain.beams import BeamRecord
from dragoman.explain.record import Trace, recording, tagged_lines, watched_call
from dragoman.explain.steps import Check, Focus, Given, Step, Table, first_numbers, lines_of, quoted
from dragoman.html import figure
from dragoman.model import MaskedLanguageModel, Model
from dragoman.model.dropout import FastDropout
from dragoman.training.charts import Point, line_chart
from dragoman.training.loss import output_loss, smoothed_cross_entropy, with_bias
from dragoman.training.schedule import paper_rate, rate_of

_TOP = 6
_OPTIMIZERS = {
    "adam": "",
    "adamw": " This run had AdamW.",
    "muon": " This run had Muon for matrices, AdamW for gains.",
}


def projection(found: Explanation, focus: Focus) -> Step:
    """Step 15: the output matrix."""
    place, model = focus.target, found.bundle.model
    matrix = model.output.weight.detach().cpu().numpy()  # (V, D)
    ours, bias = found.trace.array("output.logits"), model.output_bias  # (T, V), (V)
    computed = again.linear(again.exact(found.target.hidden[place]), matrix, None if bias is None else bias.detach().cpu().numpy())
    tokenizer = found.bundle.target_tokenizer
    best = np.argsort(-ours[place], kind="stable")[:_TOP]
    rows = tuple((piece_of(tokenizer, int(token)), int(token), float(ours[place, token])) for token in best)
    tied, single = found.bundle.config.model.tie, found.bundle.config.model.single
    how = {
        "all": f"the same matrix E that embeds {'the text' if single else 'both languages, as in the paper'}",
        "decoder": "the matrix that embeds the target, while the source has its own",
        "none": "a matrix of its own: this model shares none",
    }[tied]
    return Step(
        15, "The output matrix", "3.4", "",
        f"The last vector of the position is multiplied with every row of a matrix: {how}. So each of the {matrix.shape[0]:,} entries of "
        "the vocabulary gets a number, its logit: how well the vector points its way.",
        m.equation(f"logits = x E^T{'' if bias is None else ' + b'} , E ∈ ℝ^{{{matrix.shape[0]:,} × {matrix.shape[1]}}}"),
        (Table(f"The largest logits at position {place}", ("piece", "id", "logit"), rows),),
        (Check.of("all logits of the position", ours[place], computed),),
        lines_of(found.trace, "output.logits"), "output.logits",
        given={
            **_hidden_name(found), "at": place, "weight": matrix[best[0]], "number": int(best[0]),
            "bias": 0.0 if bias is None else bias[best[0]].item(),
        },
    )  # fmt: skip


def _hidden_name(found: Explanation) -> dict[str, Given]:
    """The name of what the output matrix gets, where the trace has it."""
    stack = found.kinds[-1] if found.beams is None else "decoder"
    name = f"{stack}.output"
    same = name in found.trace and np.array_equal(found.trace.array(name), found.target.hidden)
    return {"x": name} if same else {}


def vocabulary_softmax(found: Explanation, focus: Focus) -> Step:
    """Step 16: probabilities of the next token."""
    place, target = focus.target, found.target
    logits, log_probs = again.exact(found.trace.array("output.logits")[place]), target.log_probs[place]
    tokenizer = found.bundle.target_tokenizer
    rows = [(piece_of(tokenizer, token), p, float(log_probs[token])) for token, p in target.top(_TOP)[place]]
    rest = 1 - sum(row[1] for row in rows)
    chosen = target.side.pieces[place]
    return Step(
        16, "Softmax over the vocabulary", "3.4", "",
        f"The softmax makes probabilities of the logits. {quoted(chosen)} got {math.exp(target.token_scores[place]):.4f}, rank "
        f"{target.ranks()[place]} of {len(logits):,}. The entropy, {target.entropy()[place]:.3f} nats, says in how much doubt the model "
        "was: 0 is none.",
        m.equation(f"p = softmax(logits) , H = - ∑ p log p = {target.entropy()[place]:.4f}"),
        (Table(f"What could stand at position {place}", ("piece", "p", "log p"), (*rows, ("all others", max(rest, 0.0), "")), ("p",)),),
        (Check.of("log p of the whole vocabulary", log_probs, again.log_softmax(logits)),),
        lines_of(found.trace, "output.logits"), "output.logits", given={"x": "output.logits", "id": target.side.ids[place]},
    )  # fmt: skip


def beam_search(found: Explanation, beams: BeamRecord) -> Step:
    """Step 17: beam search and length penalty."""
    trace = Trace()
    best = beams.candidates[found.chosen].hypothesis
    watched_call(trace, length_penalty, len(best.tokens), beams.alpha)
    penalty, rows, ours, computed = beams.candidates[found.chosen].penalty, [], [], []
    for rank, each in enumerate(beams.candidates, start=1):
        n, total = len(each.hypothesis.tokens), math.fsum(each.hypothesis.token_scores)
        rows.append((f"{rank}", each.hypothesis.log_probability, n, each.penalty, each.hypothesis.score, each.text))
        ours.append(each.hypothesis.score)
        computed.append(total / ((5 + n) / 6) ** beams.alpha)
    return Step(
        17, "Beam search", "6.1", "",
        f"Not the most probable token each time but the most probable whole is wanted, so {beams.beam} hypotheses are kept at every step. "
        f"Longer ones have more factors below 1; the length penalty with α = {beams.alpha:g} makes up for it. The search stops when no "
        "hypothesis that still grows can win. The paper has beam 4 and α = 0.6.",
        m.equation(f"score = {{log P(Y)}}/{{lp(Y)}} , lp(Y) = ({{5 + {len(best.tokens)}}}/6)^{{{beams.alpha:g}}} = {penalty:.4f}"),
        (Table("The finished hypotheses", ("rank", "log P", "tokens", "lp", "score", "text"), tuple(rows)),),
        (Check.of("scores of the finished hypotheses", ours, computed),),
        (*lines_of(beams.trace, "beam.totals", "beam.score"), *lines_of(trace, "beam.penalty")),
    )  # fmt: skip


def label_smoothing(found: Explanation, focus: Focus) -> Step:
    """Step 18: the loss of the reference, or of the translation itself."""
    given, epsilon = found.reference or found.target, found.bundle.config.training.label_smoothing
    gold, trace = torch.tensor(given.side.ids), Trace()
    with torch.no_grad(), recording(trace, files=("training/loss.py",)):
        smoothed_cross_entropy(torch.from_numpy(given.log_probs), gold, epsilon=epsilon)
        bias = found.bundle.model.output_bias
        matrix = found.bundle.model.output.weight.detach().cpu()
        hidden, matrix = with_bias(torch.from_numpy(given.hidden), matrix, None if bias is None else bias.detach().cpu())
        output_loss(hidden, matrix, gold, epsilon=epsilon)
    log_probs, size = again.exact(given.log_probs), given.log_probs.shape[1]
    losses = [-float(again.smoothed(size, token, epsilon) @ row) for token, row in zip(given.side.ids, log_probs, strict=True)]
    rows = tuple(
        (piece, -float(score), loss) for piece, score, loss in zip(given.side.pieces, given.token_scores, losses, strict=True)
    )  # fmt: skip
    q = again.smoothed(size, given.side.ids[0], epsilon)
    least = -float((q * np.log(np.where(q, q, 1.0))).sum())
    total = math.fsum(losses)
    checks = [Check.of("the loss as it is written", trace.array("loss.loss"), total)]
    if "loss.smoothed" in trace:
        checks.append(Check.of("the loss as it is trained", trace.array("loss.smoothed"), total))
    itself = "the text itself" if found.beams is None else "the translation itself, as no reference was given"
    whose = "the reference that you gave" if found.reference else itself
    return Step(
        18, "Label smoothing and the loss", "5.4", "",
        f"In training the right token should get 1 - ε and a bit, every other ε/V, with ε = {epsilon:g}: the model learns to be a little "
        f"unsure. That costs perplexity and wins BLEU. Below is the loss of {whose}: {total / len(losses):.4f} a token, and it can never "
        f"fall below {least:.4f}.{' This run added R-Drop, not shown here.' if found.bundle.config.training.rdrop else ''}",
        m.equation(f"loss = - ∑ q log p , q = (1 - {epsilon:g}) gold + {epsilon:g}/{size:,}"),
        (Table(f"Of {'the reference' if found.reference else 'the translation'}", ("piece", "-log p", "smoothed loss"), rows),),
        tuple(checks), lines_of(trace, "loss.loss", "loss.smoothed"),
        given={} if found.reference else _loss_given(found.target, focus.target, epsilon),
    )  # fmt: skip


def _loss_given(target: ScoredTarget, place: int, epsilon: float) -> dict[str, Given]:
    """What the loss of one token follows from, and that loss."""
    log_probs, gold = torch.from_numpy(target.log_probs[place : place + 1]), torch.tensor(target.side.ids[place : place + 1])
    loss = float(smoothed_cross_entropy(log_probs, gold, epsilon=epsilon))
    return {"x": "output.logits", "id": target.side.ids[place], "epsilon": epsilon, "loss": loss}


def learning_rate(found: Explanation, rates: Sequence[Point]) -> Step:
    """Step 19: the learning rate at this checkpoint's step."""
    training, d_model, trace = found.bundle.config.training, found.bundle.config.model.d_model, Trace()
    step = _step_of(found)
    ours = watched_call(trace, paper_rate, step, d_model=d_model, warmup_steps=training.warmup_steps)
    own = rate_of(training, d_model=d_model)(step)
    steps = sorted({1, training.warmup_steps, step, max(step, training.warmup_steps) * 2})
    rows = tuple((f"{each:,}", paper_rate(each, d_model=d_model, warmup_steps=training.warmup_steps)) for each in steps)
    name = training.schedule if training.schedule != "paper" else "" if training.factor == 1 else f"{training.factor:g} times the rate"
    departs = f" This run departs from it: {name}, which gives {own:.3g} at that step." if name else ""
    recorded = "step" in found.bundle.info
    when = f"This model is of step {step:,}." if recorded else "This model does not tell its step; 1 is taken."
    end = max([step * 2, training.warmup_steps * 2, *(int(each) for each, _ in rates)])
    curve = [
        (float(each), paper_rate(each, d_model=d_model, warmup_steps=training.warmup_steps)) for each in range(1, end, max(1, end // 200))
    ]
    here = next((rate for each, rate in rates if each == step), own)
    curves = {**({"as trained": rates} if rates else {}), "equation (3)": curve}  # in the order, and so the colours, of a report
    return Step(
        19, "The learning rate", "5.3", "3",
        f"The rate grows in a straight line for the first {training.warmup_steps:,} steps, the warm-up, and then falls with the square "
        f"root of the step; the larger d_model, the smaller it is. {when}{departs}",
        m.equation(f"lrate = {d_model}^{{-0.5}} · min({step}^{{-0.5}} , {step} · {training.warmup_steps}^{{-1.5}}) = {ours:.4e}"),
        (Table("Equation (3) at some steps", ("step", "rate"), rows),),
        (Check.of("equation (3) at this step", ours, again.learning_rate(step, d_model, training.warmup_steps)),),
        lines_of(trace, "schedule.rate"), given={"step": step, "d_model": d_model, "warmup_steps": training.warmup_steps, "rate": ours},
        picture=figure(line_chart("Learning rate", {**curves, "this model": [(float(step), here)]}), "The dot is this model's step"),
    )  # fmt: skip


def _step_of(found: Explanation) -> int:
    step = found.bundle.info.get("step")
    return step if isinstance(step, int) and step > 0 else 1


def regularisation(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 20: dropout, Adam, averaging."""
    training, config, trace = found.bundle.config.training, found.bundle.config.model, Trace()
    x = found.trace.array(f"{stack}.input")
    checks: list[Check] = []
    rows: list[tuple[str, object]] = [("P_drop", config.dropout)]
    if config.dropout:
        with torch.random.fork_rng(devices=[]), recording(trace, files=("model/dropout.py",)), torch.no_grad():
            torch.manual_seed(1)
            ours = FastDropout(config.dropout).train()(torch.from_numpy(x.copy())).numpy()
        kept = (ours != 0) | (x == 0)
        dropped = min(round(config.dropout * 65536), 65535)  # in steps of 1/65536, as it is drawn
        checks.append(Check.of("dropout on the embeddings", ours, again.exact(x) * kept / (1 - dropped / 65536)))
        rows.append(("numbers of this sentence set to 0", f"{int((~kept).sum()):,} of {kept.size:,}"))
    gradient, computed = _gain_gradients(found, training)
    rate = rate_of(training, d_model=config.d_model)(_step_of(found))
    change = again.adam_step(gradient, rate, training.adam_beta1, training.adam_beta2, training.adam_epsilon)
    rows += [("β₁, β₂, ε", f"{training.adam_beta1:g}, {training.adam_beta2:g}, {training.adam_epsilon:g}"),
             ("length of the gradient of the last norm's gain", float(np.linalg.norm(gradient))),
             ("length of Adam's first change of it", float(np.linalg.norm(change)))]  # fmt: skip
    checks.append(Check.of("gradient of the loss for the last norm's gain", gradient, computed))
    average = found.bundle.info.get("average_of")
    averaged = f"This model is the mean of {len(average)} checkpoints." if isinstance(average, list) else "This model is one checkpoint."
    return Step(
        20, "Dropout, Adam, averaging", "5.3", "",
        "While training, each number of a sub-layer's output and of the embeddings' sums is dropped with probability P_drop (5.4). Adam "
        "divides each gradient by its own usual size (5.3): below, its first step for a gain of this model, on this sentence. At the end "
        f"the paper averages the last checkpoints (6.1). {averaged}{_OPTIMIZERS[training.optimizer]}",
        m.equation(_adam(training)),
        (Table("What training did to this sentence, and would do", ("", ""), tuple(rows)),
         Table.of_vectors(
             "Of the last norm's gain", ("",), (("gradient", *first_numbers(gradient, 4)), ("change", *first_numbers(change, 4)))
         )),
        tuple(checks), (*lines_of(trace, "dropout.dropped"), *tagged_lines("training/optimizer.py")),
    )  # fmt: skip


def _adam(training: TrainingConfig) -> str:
    first, second, epsilon = training.adam_beta1, training.adam_beta2, training.adam_epsilon
    return f"Δ θ = - lrate · m̂/{{√v̂ + {epsilon:g}}} , m = {first:g} m + {1 - first:.2g} g , v = {second:g} v + {1 - second:.2g} g^2"


def _gain_gradients(found: Explanation, training: TrainingConfig) -> tuple[again.Numbers, again.Numbers]:
    """The gradient of the loss for the gain of the last norm, as training has it, and from the probabilities and the output matrix."""
    given, model = found.reference or found.target, found.bundle.model
    norm, matrix = _last_norm(model), model.output.weight.detach().cpu()
    weight = norm.weight.detach().cpu()
    bias = norm.bias.detach().cpu() if isinstance(norm, nn.LayerNorm) and norm.bias is not None else torch.zeros_like(weight)
    output_bias = None if model.output_bias is None else model.output_bias.detach().cpu()
    with torch.inference_mode(False), torch.enable_grad():
        gain, hidden = weight.clone().requires_grad_(), torch.from_numpy(given.hidden.copy())
        directions = (hidden - bias) / weight.where(weight != 0, torch.ones_like(weight))  # what the gain multiplies
        states, rows = with_bias(hidden + directions * (gain - weight), matrix, output_bias)
        loss = output_loss(states, rows, torch.tensor(given.side.ids), epsilon=training.label_smoothing).smoothed
        (gradient,) = torch.autograd.grad(loss, [gain])
    vocabulary = len(matrix)
    wanted = np.stack([again.smoothed(vocabulary, token, training.label_smoothing) for token in given.side.ids])  # (T, V)
    backward = (np.exp(again.exact(given.log_probs)) - wanted) @ again.exact(matrix.numpy())  # (T, D)
    return again.exact(gradient.numpy()), (backward * again.exact(directions.numpy())).sum(0)


def _last_norm(model: Model) -> nn.LayerNorm | nn.RMSNorm:
    """The norm that the hidden states come from."""
    if isinstance(model, MaskedLanguageModel) and isinstance(model.transform, nn.Sequential):
        return cast(nn.LayerNorm, model.transform[-1])
    norms = [(path.rpartition(".")[2], module) for path, module in model.named_modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
    return [module for name, module in norms if name.startswith(("norm", "final_norm"))][-1]
