"""What a model of one sequence makes of the same places of the validation text at each evaluation: how it goes on, or what it fills in."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dragoman.bundle import Bundle
from dragoman.data.packing import PackedCorpus, batch_of
from dragoman.data.tokenizer import MASK, Tokenizer
from dragoman.model.transformer import LanguageModel, MaskedLanguageModel
from dragoman.training.samples import SHOWN, write_validation_text

PROMPT, CONTINUED = 32, 48
"""Most tokens that are given to a decoder, and most that it goes on with."""
FILLED = 40
"""Most tokens of a text in which an encoder fills in what is masked."""

_SEED = 1  # of the continuations, drawn by the model's own probabilities


class _Place(NamedTuple):
    """Ids that the model is given, and the rest of them or all of them as they should be."""

    given: list[int]
    right: list[int]


def text_score(run: Path, corpus: PackedCorpus, tokenizer: Tokenizer) -> Callable[[Bundle], dict[str, Any]]:
    """A function that gives the samples of a model; the places of the validation text and what stands there go into the run folder.

    A decoder gets the beginning of a block, and its continuation is drawn with a fixed seed of its own; an encoder gets one with masks.
    """
    encoder = corpus.masking is not None
    places = [_masked_place(corpus, index, tokenizer) if encoder else _prompt(corpus, index) for index in _chosen(corpus)]
    shown = [(_text(place.given, tokenizer), _rest(place, tokenizer) if not encoder else _text(place.right, tokenizer)) for place in places]
    write_validation_text(run, shown)

    def score(bundle: Bundle) -> dict[str, Any]:
        if isinstance(bundle.model, MaskedLanguageModel):
            outputs = [_fill(bundle, place) for place in places]
        else:
            outputs = [_continue(bundle, place, seed=_SEED + number) for number, place in enumerate(places)]
        samples = [{"source": source, "reference": right, "output": said} for (source, right), said in zip(shown, outputs, strict=True)]
        return {"samples": samples, "outputs": outputs}

    return score


def _chosen(corpus: PackedCorpus) -> list[int]:
    """Blocks spread over the text, whole ones where there are some."""
    whole = np.flatnonzero(corpus.own == corpus.own.max())
    return [int(whole[len(whole) * part // (SHOWN + 1)]) for part in range(1, SHOWN + 1)][: len(whole)]


def _prompt(corpus: PackedCorpus, index: int) -> _Place:
    start, count = int(corpus.target_starts[index]), int(corpus.own[index])
    ids = corpus.target_ids[start : start + count].tolist()
    given = min(PROMPT, max(count // 2, 1))
    return _Place(ids[:given], ids[given : given + CONTINUED])


def _masked_place(corpus: PackedCorpus, index: int, tokenizer: Tokenizer) -> _Place:
    batch = batch_of(corpus, np.array([index]), tokenizer)
    right, chosen = batch.target_output[0, : FILLED + 1], batch.target_mask[0, : FILLED + 1]
    assert tokenizer.mask is not None
    return _Place(right.masked_fill(chosen, tokenizer.mask).tolist(), right.tolist())


def _rest(place: _Place, tokenizer: Tokenizer) -> str:
    """What comes behind the ids that are given, with the space that may be before it."""
    return tokenizer.decode([*place.given, *place.right])[len(tokenizer.decode(place.given)) :]


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Text with its masks; without the space before it, as `Tokenizer.decode` gives it."""
    pieces = [MASK.encode() if token == tokenizer.mask else tokenizer.piece(token) for token in ids]
    text = tokenizer.plain(b"".join(pieces).decode(errors="replace"))
    return text if tokenizer.kind == "characters" else text.strip(" ")


def _said(logits: torch.Tensor, bundle: Bundle) -> torch.Tensor:
    """Logits (…, V) on the CPU without what is no text, the end of a document apart."""
    tokenizer = bundle.target_tokenizer
    banned = [*(tokenizer.textless | {tokenizer.unk}) - {tokenizer.eos}, *range(len(tokenizer), logits.size(-1))]
    logits = logits.float().cpu()
    logits[..., banned] = -torch.inf
    return logits


def _continue(bundle: Bundle, place: _Place, *, seed: int) -> str:
    model, tokenizer = bundle.model, bundle.target_tokenizer
    assert isinstance(model, LanguageModel)
    generator = torch.Generator().manual_seed(seed)
    device = model.output.weight.device
    said: list[int] = []
    tokens, cache = torch.tensor([place.given], device=device), model.start()
    while len(said) < min(CONTINUED, model.max_positions - len(place.given)):
        hidden, cache = model.step(tokens, cache)
        probabilities = _said(model.project(hidden[:, -1]), bundle)[0].softmax(-1)
        token = int(torch.multinomial(probabilities, 1, generator=generator))
        if token == tokenizer.eos:
            break
        said.append(token)
        tokens = torch.tensor([[token]], device=device)
    return _rest(_Place(place.given, said), tokenizer)


def _fill(bundle: Bundle, place: _Place) -> str:
    model, tokenizer = bundle.model, bundle.target_tokenizer
    assert isinstance(model, MaskedLanguageModel)
    tokens = torch.tensor([place.given], device=model.output.weight.device)
    best = _said(model(tokens), bundle)[0].argmax(-1).tolist()
    filled = [said if token == tokenizer.mask else token for token, said in zip(place.given, best, strict=True)]
    return _text(filled, tokenizer)
