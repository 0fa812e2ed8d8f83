"""Whether two programs compute the same: logits on sample input, greedy outputs, and the ids of sample texts.

Shapes:  B samples   S source positions   T target positions   V vocabulary
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError
from dragoman.model.transformer import LanguageModel, MaskedLanguageModel, Transformer

LIMIT = 1e-4
"""The most that logits may differ in float32, for each unit of the largest of them, or in all where that is below 1."""

SAMPLE_TEXTS = (
    "A man rides a horse.",
    "  Two spaces,  at both ends  ",
    "L'été, naïve café — “quotes”…",
    "ΑΒΓ αβγ Straße ẞ ﬁ ½ ①",
    "東京 日本語 中文字符 한국어",
    "🐟 👩‍🚀 🇳🇴 👍🏽",
    "Don't they're we'll I'm",
    "1234567890 3.14 1,000,000",
    "tab\tand\u00a0no-break\u200bzero width",
    "aaaaaaaaaaaaaaaa",
    "?!;:()[]{}<>@#$%^&*_=+|\\/`~",
)

Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Source ids (B, S), their mask (B, S) and target ids (B, T) to logits (B, T, V); a model of one sequence sees the first two alone."""


@dataclass(frozen=True)
class Verification:
    """What a comparison found: with what, the largest difference of logits and how large they are, and how many outputs agree."""

    against: str
    difference: float
    largest_logit: float
    samples: int
    greedy_agree: int | None
    texts: int | None = None
    texts_agree: int | None = None
    first_text: str = ""
    notices: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """The most that the logits may differ."""
        return LIMIT * max(1.0, self.largest_logit)

    @property
    def agrees(self) -> bool:
        """Whether everything that was compared is the same."""
        greedy = self.greedy_agree is None or self.greedy_agree == self.samples
        return self.difference <= self.limit and greedy and self.texts == self.texts_agree

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON."""
        return {**asdict(self), "limit": self.limit, "agrees": self.agrees}

    def sentence(self) -> str:
        """The facts in words."""
        parts = [f"largest difference of logits {self.difference:.2g} (limit {self.limit:.2g}, largest logit {self.largest_logit:.3g})"]
        if self.greedy_agree is not None:
            parts.append(f"greedy outputs agree on {self.greedy_agree} of {self.samples} samples")
        if self.texts is not None:
            parts.append(f"ids agree on {self.texts_agree} of {self.texts} texts")
        return f"compared with {self.against}: {'; '.join(parts)}"

    def require(self, what: str) -> None:
        """DragomanError when something differs: the result is not to be left."""
        if not self.agrees:
            text = f"; the first text that differs is {self.first_text!r}" if self.first_text else ""
            raise DragomanError(f"{what}: the result is not the same model ({self.sentence()}{text}); nothing is written")


@dataclass(frozen=True)
class Samples:
    """Random ids: sources (B, S) with their mask, padded on the right, and targets (B, T)."""

    source: Tensor
    mask: Tensor
    target: Tensor


def draw_samples(bundle: Bundle, *, rows: int = 3, longest: int = 12, seed: int = 1) -> Samples:
    """Samples for a bundle, of ids that its tokenizers know, no longer than the model takes."""
    generator = torch.Generator().manual_seed(seed)
    longest = min(longest, bundle.config.model.max_positions)

    def ids(tokenizer: Tokenizer, count: int) -> Tensor:
        allowed = [token for token in range(len(tokenizer)) if token not in tokenizer.textless] or [tokenizer.eos]
        return torch.tensor(allowed)[torch.randint(len(allowed), (rows, count), generator=generator)]  # (B, count)

    source, target = ids(bundle.source_tokenizer, longest), ids(bundle.target_tokenizer, max(longest // 2, 1))
    lengths = torch.tensor([max(longest - 3 * row, 1) for row in range(rows)])
    mask = torch.arange(longest) < lengths[:, None]  # (B, S)
    target[:, 0] = bundle.target_tokenizer.bos
    return Samples(source.masked_fill(~mask, bundle.source_tokenizer.pad), mask, target)


def logits_of(bundle: Bundle) -> Logits:
    """Our own side of a comparison; of an encoder without a head for words its states are compared instead."""
    model = bundle.model

    def logits(source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        if isinstance(model, Transformer):
            found: Tensor = model(source, target, mask)
        elif isinstance(model, LanguageModel) or bundle.config.model.output_transform:
            found = model(source, mask)
        else:
            assert isinstance(model, MaskedLanguageModel)
            found = model.encode(source, mask)
        return found

    return logits


def compare(bundle: Bundle, theirs: Logits, *, against: str, steps: int = 8) -> Verification:
    """Our logits and greedy outputs against another program's on random ids of three lengths in one batch."""
    samples, ours = draw_samples(bundle), logits_of(bundle)
    both = isinstance(bundle.model, Transformer)
    with torch.inference_mode():
        mine, other = (side(samples.source, samples.mask, samples.target) for side in (ours, theirs))
        if mine.shape != other.shape:
            raise DragomanError(f"{against} gives logits of shape {tuple(other.shape)}, and Dragoman {tuple(mine.shape)}")
        seen = samples.mask[..., None] if not both else torch.ones_like(mine[..., :1], dtype=torch.bool)
        difference = (mine - other).abs().masked_fill(~seen, 0.0).max().item()
        if isinstance(bundle.model, MaskedLanguageModel):
            best = (other.argmax(-1) == mine.argmax(-1)).logical_or(~samples.mask).all(1)  # (B,)
            agree = int(best.sum()) if bundle.config.model.output_transform else None
        else:
            outputs = [_greedy(bundle, side, samples, steps) for side in (ours, theirs)]
            agree = sum(a == b for a, b in zip(*outputs, strict=True))
        largest = mine.abs().masked_fill(~seen, 0.0).max().item()
        if not isfinite(largest):
            raise DragomanError("the model computes logits that are no finite numbers, so its weights are damaged; use another copy of it")
    return Verification(against, difference if difference == difference else float("inf"), largest, len(samples.source), agree)


def _greedy(bundle: Bundle, logits: Logits, samples: Samples, steps: int) -> list[list[int]]:
    """The most probable token, again and again, of each sample by itself and without a cache; no padding, start or tag."""
    tokenizer, both, found = bundle.target_tokenizer, isinstance(bundle.model, Transformer), []
    banned = [token for token in (tokenizer.pad, tokenizer.bos, *tokenizer.tags.values()) if token != tokenizer.eos]
    for row in range(len(samples.source)):
        length = int(samples.mask[row].sum())
        source = samples.source[row : row + 1, :length]  # (1, S)
        output = torch.tensor([[tokenizer.bos]]) if both else source
        room = bundle.config.model.max_positions - output.size(1)
        for _ in range(min(steps, room)):
            given = (source, torch.ones_like(source, dtype=torch.bool), output) if both else (output, torch.ones_like(output) > 0, output)
            scores = logits(*given)[0, -1].clone()  # (V)
            scores[banned] = -torch.inf
            scores[len(tokenizer) :] = -torch.inf
            output = torch.cat((output, scores.argmax()[None, None]), 1)
            if output[0, -1] == tokenizer.eos:
                break
        found.append(output[0].tolist())
    return found


def compare_texts(
    verification: Verification,
    ours: Callable[[str], Sequence[int]],
    theirs: Callable[[str], Sequence[int]],
    texts: Sequence[str] = SAMPLE_TEXTS,
) -> Verification:
    """The verification with how many of the texts have the same ids on both sides."""
    differing = [text for text in texts if list(ours(text)) != list(theirs(text))]
    values = {name: getattr(verification, name) for name in Verification.__dataclass_fields__}
    values |= {"texts": len(texts), "texts_agree": len(texts) - len(differing), "first_text": differing[0] if differing else ""}
    return Verification(**values)
