"""Small bundles for tests of decoding: FX-RAND and FX-TOY of the reported faults, and a model that copies any text."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.bundle import Bundle
from dragoman.config import Config
from dragoman.data.batching import pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.model import build_model

CONTROL_TEXTS = ["ona </s> bek", "<pad><pad> rem", "[SEP]", "<|endoftext|>", "<s>", "<unk>", "<s>ona</s>", "< s >", "</s>"]
EMOJI = ["🐟", "👩‍🚀", "🇳🇴", "👍🏽"]
PARK = "我们明天早上去公园散步。"
_WORDS = "ona bek tilu rem sova kip dal nur afi gost huma jelo lira mok pest quin ruda sil tova ubek vast wim yor zel"
WORDS = _WORDS.split()
SIZES = {"d_model": 32, "d_ff": 64, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}


def reverse(sentence: str) -> str:
    """The made-up target language: the same words backwards and in upper case."""
    return " ".join(word[::-1].upper() for word in sentence.split())


def make_bundle(source: Tokenizer, target: Tokenizer, *, seed: int = 1, extra_length: int = 8, **model: Any) -> Bundle:
    """A tiny random model over two tokenizers, which are one object for a joint vocabulary."""
    sizes = {"source_vocabulary": len(source), "target_vocabulary": len(target), "tie": "decoder"}
    config = Config().with_values(model=SIZES | sizes | model, decoding={"extra_length": extra_length})
    return Bundle(config, build_model(config.model, seed=seed), source, target)


def fx_rand(*, seed: int = 1, extra_length: int = 8, **model: Any) -> Bundle:
    """FX-RAND: random weights over 12 words, nothing peaked, so mistakes show; untied, or it would repeat its input words for ever."""
    tokenizer = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16)
    return make_bundle(tokenizer, tokenizer, seed=seed, extra_length=extra_length, tie="none", **model)


def random_sentences(count: int, *, longest: int = 12, words: int = 12, seed: int = 0) -> list[str]:
    """Sentences of 1 to ``longest`` of the first ``words`` words."""
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS[:words], k=choose.randint(1, longest))) for _ in range(count)]


@cache
@torch.inference_mode(mode=False)  # whoever needs it first
def fx_toy() -> Bundle:
    """FX-TOY: trained a little on 200 sentences of 2 to 8 words and their reversals; more peaked than random, still in doubt."""
    choose = random.Random(0)
    sources = [" ".join(choose.sample(WORDS, choose.randint(2, 8))) for _ in range(200)]
    source, target = (
        Tokenizer.train(lines, kind="whitespace", vocabulary_size=100) for lines in (sources, [reverse(line) for line in sources])
    )
    bundle = make_bundle(source, target, encoder_layers=1, decoder_layers=1)
    cpu = torch.device("cpu")
    source_ids, source_mask = pad_rows([[*ids, source.eos] for ids in source.encode_batch(sources)], pad=source.pad, device=cpu)
    targets = target.encode_batch([reverse(line) for line in sources])
    target_input, _ = pad_rows([[target.bos, *ids] for ids in targets], pad=target.pad, device=cpu)
    target_output, _ = pad_rows([[*ids, target.eos] for ids in targets], pad=target.pad, device=cpu)
    optimizer = torch.optim.Adam(bundle.model.parameters(), lr=5e-3)
    for step in range(100):
        rows = torch.randperm(200, generator=torch.Generator().manual_seed(step))[:32]
        logits = bundle.model(source_ids[rows], target_input[rows], source_mask[rows])
        loss = F.cross_entropy(logits.flatten(0, 1), target_output[rows].flatten(), ignore_index=target.pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bundle.model.eval()
    return bundle


@cache
def copier() -> Bundle:
    """A model of byte pairs that copies: trained for some seconds on random ids, so that it knows no text and repeats any, byte by byte."""
    tokenizer = Tokenizer.train([" ".join(WORDS), " ".join(EMOJI), PARK, *CONTROL_TEXTS] * 4, kind="bpe", vocabulary_size=420)
    sizes = {"d_model": 64, "d_ff": 128, "n_heads": 4, "encoder_layers": 1, "decoder_layers": 1, "tie": "all"}
    bundle = make_bundle(tokenizer, tokenizer, **sizes)
    optimizer = torch.optim.Adam(bundle.model.parameters(), betas=(0.9, 0.98))
    random_ids = torch.Generator().manual_seed(1)
    steps = 500
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = 0.006 * min(step / 100, 1.02 - step / steps)
        length = int(torch.randint(2, 13, (1,), generator=random_ids))
        ids = torch.randint(4, len(tokenizer), (256 // length, length), generator=random_ids)
        ids = ids[:, torch.randint(length, (length,), generator=random_ids)]  # tokens come twice, as they do in text
        ids[:, -1] = tokenizer.eos
        target_input = torch.cat((torch.full_like(ids[:, :1], tokenizer.bos), ids[:, :-1]), 1)
        loss = F.cross_entropy(bundle.model(ids, target_input).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(bundle.model.parameters(), 1.0)
        optimizer.step()
    bundle.model.eval()
    return bundle


@contextmanager
def ids_seen(bundle: Bundle) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """What the encoder and the decoder are given until the block ends, call by call."""
    seen: tuple[list[Tensor], list[Tensor]] = [], []
    sides = zip((bundle.model.encoder, bundle.model.decoder), seen, strict=True)
    hooks = [side.register_forward_pre_hook(lambda _, given, calls=calls: calls.append(given[0].clone())) for side, calls in sides]
    yield seen
    for hook in hooks:
        hook.remove()
