"""The walk, steps 1 to 3: from text to the first vectors (Sections 5.1, 3.4 and 3.5)."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import cast

import numpy as np

from dragoman.explain import equations as again
from dragoman.explain import mathml as m
from dragoman.explain.answer import Explanation
from dragoman.explain.attention import signed_png
from dragoman.explain.record import Trace, recording, watched_call
from dragoman.explain.steps import Check, Focus, Step, Table, first_numbers, lines_of, quoted
from dragoman.explain.walk_layer import norm_again
from dragoman.html import figure
from dragoman.model.embedding import Embedding, LearnedPositions, PositionalEncoding, sinusoids


def tokens(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 1: tokens and ids."""
    tokenizer, source = found.bundle.source_tokenizer, found.source
    _, text = tokenizer.split_tag(source.text, place="the text")
    trace = Trace()
    ids = watched_call(trace, tokenizer.encode, text)
    no_text = tokenizer.textless | {tokenizer.unk}  # from which no id comes back
    known = [token for token in ids if token not in no_text]
    told = " ".join(map(tokenizer.token, known)) if tokenizer.kind == "whitespace" else tokenizer.decode(known)
    differ = sum(one != other for one, other in zip_longest(known, tokenizer.encode(told)))
    rows = tuple((place, piece, token) for place, (piece, token) in enumerate(zip(source.pieces, source.ids, strict=True)))
    ends = {
        "encoder-decoder": "The last is the end token, which the model needs to know where the text stops.",
        "decoder-only": "The first is the start token: what the model sees before it has read anything.",
        "encoder-only": "Around them stand the start and the end token.",
    }[found.bundle.config.model.architecture]
    kind = {
        "bpe": "byte pairs, learnt from the training text",
        "whitespace": "the pieces between its spaces",
        "characters": "its characters",
        "foreign": "the pieces of the tokenizer that came with the model",
    }[tokenizer.kind]
    return Step(
        1, "Tokens and ids", "5.1", "",
        f"The text becomes {len(source.ids)} ids of a vocabulary of {len(tokenizer):,} entries: {kind}. {ends} From here on the model sees "
        "numbers alone.",
        m.equation(f"n = {len(source.ids)} , V = {len(tokenizer):,}"),
        (Table("The text in pieces", ("position, from 0", "piece", "id"), rows),),
        (Check("ids that come back when decoded and encoded", len(known), max(len(known) - differ, 0), differ, len(known)),),
        lines_of(trace, "tokenizer.ids"),
    )  # fmt: skip


def embedding(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 2: embedding times √d_model."""
    place = focus.source
    token, piece = found.source.ids[place], found.source.pieces[place]
    name = _embedded(found, stack)
    ours = found.trace.array(name)  # (T, D)
    module = cast(Embedding, found.module(f"{stack}.embedding"))
    row = again.exact(module.weight[token].detach().cpu().numpy())
    scale = float(module.scale)
    d_model = ours.shape[-1]
    rows = (("the row of the matrix", *first_numbers(row)), (f"times {scale:.4f}", *first_numbers(ours[place])))
    rotary = found.bundle.config.model.positions == "rotary"
    scaled = ", multiplied by √d_model" + ("" if rotary else " so that it stands beside the positions that are added next")
    if scale == 1:
        scaled = ", which this model, unlike the paper, does not multiply by √d_model"
    size = f"√{d_model}" if math.isclose(scale, math.sqrt(d_model)) else f"{scale:.4g}"
    return Step(
        2, "Embedding, times √d_model", "3.4", "",
        f"Each id picks a row of d_model = {d_model} learnt numbers{scaled}. Here it is the row of {quoted(piece)}, id {token}.",
        m.equation(f"x_{{{place}}} = E_{{{token}}} · {size} = E_{{{token}}} · {scale:.4f}"),
        (Table.of_vectors(f"The first numbers of the vector of {quoted(piece)}", ("",), rows),),
        (Check.of("the whole vector", ours[place], row * scale),),
        lines_of(found.trace, name), name, given={"row_of": module.weight[token].detach().cpu().numpy(), "scale": scale},
    )  # fmt: skip


def _embedded(found: Explanation, stack: str) -> str:
    """The name of the embeddings in the trace: the rows themselves where nothing is multiplied."""
    name = f"{stack}.embedding.embedded"
    return name if name in found.trace else f"{stack}.embedding.rows"


def positions(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 3: positions."""
    place, module = focus.source, found.module(f"{stack}.positions")
    name = f"{stack}.positions.summed"
    if not isinstance(module, PositionalEncoding | LearnedPositions):
        return _rotary(found, focus, stack)
    before, after = found.trace.array(_embedded(found, stack))[place], found.trace.array(name)[place]
    d_model, trace, picture, given = len(after), Trace(), "", {"x": _embedded(found, stack), "sum": name}
    if isinstance(module, LearnedPositions):
        added, given = again.exact(module.weight[place].detach().cpu().numpy()), {}
        prose = "This model has learnt a vector for each position, as in row (E) of Table 3, and adds it to the embedding."
        equation = m.equation("x_pos + P_pos")
    else:
        concatenated = found.bundle.config.model.positions == "sinusoidal-concat"
        with recording(trace):
            sinusoids(place + 1, d_model, concatenated=concatenated)
        added = again.sinusoid(place, d_model, concatenated=concatenated)
        picture = _strip([again.sinusoid(each, d_model, concatenated=concatenated) for each in range(len(found.source.ids))])
        prose = (
            "Attention does not know which token came first, so each position has a pattern of sines and cosines, added to the embedding. "
            "Their wavelengths grow from 2π to nearly 10000 · 2π; a shift by k is the same rotation everywhere. "
            f"The token stands at position {place}, counted from 0."
        )
        equation = _sinusoids(d_model, concatenated=concatenated)
    rows = (
        ("embedding", *first_numbers(before)),
        ("PE", *first_numbers(added)),
        ("sum", *first_numbers(after)),
    )
    table = Table.of_vectors(f"The first numbers at position {place}", ("",), rows)
    return Step(
        3, "Positions", "3.5", "", prose, equation, (table,), (Check.of("embedding + PE", after, again.exact(before) + added),),
        (*lines_of(trace, "embedding.angles", "embedding.encoding"), *lines_of(found.trace, name)), name, picture, given,
    )  # fmt: skip


def _strip(rows: Sequence[again.Numbers]) -> str:
    picture = f'<img class="strip" src="{signed_png(np.array(rows))}" height="{6 * len(rows)}" alt="PE of each position, a row each"/>'
    return figure(picture, "PE: a row for each position, a column for each number; blue above 0, orange below")


def _sinusoids(d_model: int, *, concatenated: bool) -> str:
    angle = f"pos/10000^{{2 i ∕ {d_model}}}"
    even, odd = ("i", f"{d_model // 2} + i") if concatenated else ("2 i", "2 i + 1")
    return m.equation(f"PE_{{pos , {even}}} = sin({angle}) , PE_{{pos , {odd}}} = cos({angle})")


def _rotary(found: Explanation, focus: Focus, stack: str) -> Step:
    """Step 3 where no vector is added: heads are rotated instead."""
    name = f"{stack}.{focus.layer}.self.rotary.turned"
    queries, model = found.trace.array(f"{stack}.{focus.layer}.self.queries"), found.bundle.config.model  # (T, H·K)
    own = again.exact(queries[focus.source]).reshape(model.n_heads, -1)[focus.head]  # (K,)
    rows = [("query", *first_numbers(own))]
    if model.qk_norm:
        own = norm_again(found.module(f"{stack}.layers.{focus.layer}.self_attn.query_norm"), own)
        rows.append(("normed", *first_numbers(own)))
    ours = found.trace.array(f"{stack}.{focus.layer}.self.head_queries")[focus.head, focus.source]
    angles = [focus.source / model.rotary_base ** (2 * i / len(own)) for i in range(len(own) // 2)]
    turned = [
        value
        for i, angle in enumerate(angles)
        for value in (
            own[2 * i] * math.cos(angle) - own[2 * i + 1] * math.sin(angle),
            own[2 * i] * math.sin(angle) + own[2 * i + 1] * math.cos(angle),
        )
    ]
    rows.append(("rotated", *first_numbers(ours)))
    return Step(
        3, "Positions", "3.5", "",
        "This model departs from the paper: no position is added. In each head the pairs of numbers of queries and keys are rotated "
        "instead, by the angles of the paper's sinusoids, so that their product depends on the distance of two tokens.",
        m.equation(
            "r_{2 i} = q_{2 i} cos θ_i - q_{2 i + 1} sin θ_i , r_{2 i + 1} = q_{2 i} sin θ_i + q_{2 i + 1} cos θ_i , "
            f"θ_i = pos/{model.rotary_base:g}^{{2 i ∕ {len(own)}}}"
        ),
        (Table.of_vectors(f"A query at position {focus.source}", ("",), rows),),
        (Check.of("the rotated query", ours, np.array(turned)),), lines_of(found.trace, name), name,
    )  # fmt: skip
