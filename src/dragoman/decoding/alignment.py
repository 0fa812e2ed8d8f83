"""Which source words a translation came from: the attention of the decoder to the encoder's output (Section 3.2.3), looked at afterwards.

Shapes:  B translations   L decoder layers looked at   H heads   T, S target and source tokens, end token included

The search keeps no attention weights. The translation that it found goes through the decoder once more, as in training, with equation (1)
in place of the fused kernel in the layers that are looked at; the model is left as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.alignments import words_at
from dragoman.data.batching import batches_of, pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.translate import Part, Translation
from dragoman.errors import UsageError
from dragoman.model import EncoderDecoder, ScaledDotProductAttention, Transformer
from dragoman.model.layers import DecoderLayer

Weights = NDArray[np.float32]
Links = list[tuple[int, int]]


@dataclass(frozen=True)
class Alignment:
    """Links of a translation as (source, target), counted from 0 and sorted: between words, and between tokens.

    A word is what stands between white space in the text, behind the language tag if it has one; the tokens of segmented text that belong
    together are one word. Each word and each token of the translation, but for the end tokens, has one link: to where most of its attention
    went, end token and tag aside. ``source_tokens`` has these two as well.
    """

    words: Links
    tokens: Links
    source_tokens: tuple[str, ...]

    def pharaoh(self) -> str:
        """The links between words as ``0-0 1-2``: the places of source and target."""
        return " ".join(f"{source}-{target}" for source, target in self.words)

    def record(self) -> dict[str, Any]:
        """What a JSON object of the translation has of it."""
        return {"alignment": self.words, "token_alignment": self.tokens, "source_tokens": self.source_tokens}


def default_layer(model: EncoderDecoder) -> int:
    """The decoder layer, from 1, whose attention is taken for an alignment unless another is asked for, or a head of the model was trained
    to align: the last but one, or the only one.

    The last layer serves the choice of the next token more than the look-up of the source.
    """
    return max(len(_transformer(model).decoder.layers) - 1, 1)


def check_layer(model: EncoderDecoder, layer: int) -> None:
    """Raises UsageError for a decoder layer, counted from 1, that the model does not have; 0 stands for the usual one."""
    layers = len(_transformer(model).decoder.layers)
    if not 0 <= layer <= layers:
        raise UsageError(f"layer {layer}: the model's decoder has layers 1 to {layers}; give one of them")


def _transformer(model: EncoderDecoder) -> Transformer:
    if not isinstance(model, Transformer):
        raise UsageError(
            "alignments and attention are of a Transformer's heads, which this model has not; leave out --align and --attention"
        )
    return model


def align(bundle: Bundle, texts: Sequence[str], translations: Sequence[Translation], *, layer: int | None = None) -> list[Alignment]:
    """The alignment of each text with its translation, from the attention of a decoder layer, counted from 1, averaged over its heads.

    None or 0 is the head that was trained to align (``model.alignment_layer``), alone, or where the model has none, `default_layer`.
    Raises UsageError for a layer that the model does not have.
    """
    check_layer(bundle.encoder_decoder, layer or 0)
    trained, head = bundle.config.model.alignment_layer, bundle.config.model.alignment_head - 1
    if trained and not layer:
        weights = _of_each(bundle, translations, [trained - 1], lambda seen: seen[0][:, head])
    else:
        number = layer or default_layer(bundle.encoder_decoder)
        weights = _of_each(bundle, translations, [number - 1], lambda seen: seen[0].mean(1))
    return [_aligned(bundle, *each) for each in zip(texts, translations, weights, strict=True)]


def attention(bundle: Bundle, translations: Sequence[Translation]) -> list[Weights]:
    """The attention of every decoder layer and head in each translation, float32 (L, H, T, S): row t chose token t.

    Of a text that was translated in pieces each piece has its own block, and the rest is zero.
    """
    layers = range(len(_transformer(bundle.encoder_decoder).decoder.layers))
    return _of_each(bundle, translations, layers, lambda seen: torch.stack(list(seen), 1))


def source_tokens(bundle: Bundle, translation: Translation) -> tuple[str, ...]:
    """The source tokens of a translation: those of its parts one after another, each with its tag and its end token."""
    return tuple(bundle.source_tokenizer.token(token) for part in translation.parts for token in part.source)


def _of_each(
    bundle: Bundle, translations: Sequence[Translation], layers: Sequence[int], reduce: Callable[[Sequence[Tensor]], Tensor]
) -> list[Weights]:
    """What ``reduce`` makes of the weights (B, H, T, S) of these layers, cut to the tokens of each translation: (…, T, S)."""
    parts = [part for translation in translations for part in translation.parts]
    found = iter(_of_parts(bundle, parts, layers, reduce))
    return [_blocks([next(found) for _ in translation.parts], bundle, len(layers)) for translation in translations]


def _of_parts(bundle: Bundle, parts: Sequence[Part], layers: Sequence[int], reduce: Callable[[Sequence[Tensor]], Tensor]) -> list[Weights]:
    source, target, model = bundle.source_tokenizer, bundle.target_tokenizer, _transformer(bundle.encoder_decoder)
    device = model.output.weight.device
    found: dict[int, Weights] = {}
    with torch.inference_mode(), _watched(model, layers) as seen:
        for batch in batches_of([max(len(part.source), len(part.target)) for part in parts], batch_tokens=4096):
            some = [parts[place] for place in batch]
            ids, mask = pad_rows([part.source for part in some], pad=source.pad, device=device)  # (B, S)
            given, _ = pad_rows([[target.bos, *part.target[:-1]] for part in some], pad=target.pad, device=device)  # (B, T)
            seen.clear()
            model.decode(given, model.encode(ids, mask), mask)
            weights = reduce(seen).float().cpu().numpy()  # (B, …, T, S)
            for place, part, own in zip(batch, some, weights, strict=True):
                found[place] = own[..., : len(part.target), : len(part.source)].copy()  # not a view, which would keep the batch
    return [found[place] for place in range(len(parts))]


@contextmanager
def _watched(model: Transformer, layers: Sequence[int]) -> Iterator[list[Tensor]]:
    """While the block runs each of these decoder layers adds its attention weights (B, H, T, S) to the list; evaluation mode."""
    seen: list[Tensor] = []
    modules = [cast(DecoderLayer, model.decoder.layers[layer]).cross_attn for layer in layers]
    before, training = [module.attention for module in modules], model.training
    model.eval()
    try:
        for module in modules:
            module.attention = ScaledDotProductAttention().eval()
            module.attention.register_forward_hook(lambda _, __, attended: seen.append(attended.weights))
        yield seen
    finally:
        for module, own in zip(modules, before, strict=True):
            module.attention = own
        model.train(training)


def _blocks(parts: Sequence[Weights], bundle: Bundle, layers: int) -> Weights:
    """The matrices of parts along a diagonal."""
    if len(parts) == 1:
        return parts[0]
    lead: tuple[int, ...] = parts[0].shape[:-2] if parts else (layers, bundle.config.model.n_heads)
    whole = np.zeros((*lead, sum(part.shape[-2] for part in parts), sum(part.shape[-1] for part in parts)), np.float32)
    row = column = 0
    for part in parts:
        height, width = part.shape[-2:]
        whole[..., row : row + height, column : column + width] = part
        row, column = row + height, column + width
    return whole


def _aligned(bundle: Bundle, text: str, translation: Translation, weights: Weights) -> Alignment:
    """Links by the weights (T, S) of all parts of a text."""
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    source_spans = [span for part in translation.parts for span in _source_spans(source, part)]
    target_spans = _target_spans(target, translation.parts)
    head = translation.parts[0].start if translation.parts else 0
    source_words = words_at(text, source_spans, source.joiner, start=head)
    target_words = words_at(translation.text, target_spans)
    meant = np.array([token not in source.textless for part in translation.parts for token in part.source], bool)
    return Alignment(
        words=_word_links(weights, source_words, target_words),
        tokens=_token_links(weights, meant, [token == target.eos for part in translation.parts for token in part.target]),
        source_tokens=source_tokens(bundle, translation),
    )


def _source_spans(tokenizer: Tokenizer, part: Part) -> list[tuple[int, int]]:
    """Where in the whole text each id of a part is; nothing of it is the tag's and the end's."""
    spans = [(part.start + start, part.start + end) for start, end in tokenizer.encoded_spans(part.text)]
    end = [(0, 0)] * tokenizer.source_end
    return [(0, 0)] * (len(part.source) - len(spans) - len(end)) + spans + end


def _target_spans(tokenizer: Tokenizer, parts: Sequence[Part]) -> list[tuple[int, int]]:
    spans, place = [], 0
    for part in parts:
        spans += [(place + start, place + end) for start, end in tokenizer.decoded_spans(part.target)]
        place += len(tokenizer.decode(part.target)) + len(part.separator)
    return spans


def _word_links(weights: Weights, source: Sequence[int], target: Sequence[int]) -> Links:
    """For each target word the source word with most of the weights (T, S): summed over its tokens, averaged over the target word's."""
    if not weights.size or max(source, default=-1) < 0:
        return []
    gathered: NDArray[Any] = np.zeros((max(target, default=-1) + 2, max(source) + 2))
    np.add.at(gathered, (np.array(target)[:, None], np.array(source)), weights)  # what is in no word falls into the last row and column
    spoken = sorted({word for word in target if word >= 0})
    return sorted((int(gathered[word, :-1].argmax()), word) for word in spoken)


def _token_links(weights: Weights, meant: NDArray[np.bool_], ends: Sequence[bool]) -> Links:
    if not meant.any():
        return []
    best = np.where(meant, weights, -1.0).argmax(-1)
    return sorted((int(place), token) for token, (place, end) in enumerate(zip(best, ends, strict=True)) if not end)
