"""Whether CTranslate2 computes from a folder what our model computes: logits side by side, and greedy outputs.

Shapes:  B sources   S, T source and target tokens   V vocabulary there
"""

import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.interop.ctranslate2_vocabulary import as_given, entries_of
from dragoman.interop.verify import Verification, compare, logits_of

_SAMPLES, _LONGEST, _OUTPUT = 16, 12, 24  # sources, and most tokens of a source and of an output


def installed_version() -> str:
    """The version of CTranslate2 that is installed; empty where there is none."""
    if find_spec("ctranslate2") is None:
        return ""
    import ctranslate2

    return str(ctranslate2.__version__)


def compare_with_folder(bundle: Bundle, folder: Path, *, rows: int, computed: str = "float32") -> Verification:
    """A bundle against what CTranslate2 computes from a folder in the given type: logits of every greedy step, and the greedy outputs.

    ``rows`` are the entries of the target vocabulary there. Where CTranslate2 is not installed its side is the folder read by Dragoman.
    """
    if not installed_version():
        from dragoman.interop.ctranslate2_in import read_folder

        ours = logits_of(read_folder(folder).bundle)
        return compare(bundle, ours, against="Dragoman's own reading of the folder, as ctranslate2 is not installed")
    sources = sample_sources(bundle)
    outputs, logits = _ask(bundle, folder, sources, computed)
    difference, same = _compare(bundle, sources, outputs, logits, rows)
    largest = max(float(np.abs(each[:, :rows]).max()) for each in logits)
    return Verification(f"CTranslate2 {installed_version()}", difference, largest, len(sources), same)


def sample_sources(bundle: Bundle) -> list[list[int]]:
    """Sources in ids, without what stands around them, of different lengths and always the same; with a tag where the model wants one."""
    tokenizer, choose = bundle.source_tokenizer, random.Random(0)
    head = list(tokenizer.tags.values())[:1]
    usable = [token for token in range(len(tokenizer)) if token not in tokenizer.textless and token != tokenizer.unk]
    longest = min(_LONGEST, bundle.config.model.max_positions - 3)
    return [[*head, *choose.choices(usable, k=1 + number % longest)] for number in range(_SAMPLES)]


def _ask(bundle: Bundle, folder: Path, sources: Sequence[Sequence[int]], kind: str) -> tuple[list[list[int]], list[Any]]:
    """CTranslate2's greedy outputs in ids, the end token included, and the logits (T, V) of each step."""
    import ctranslate2

    model = bundle.config.model
    entries = entries_of(bundle.source_tokenizer, model.source_vocabulary)
    places = {entry: place for place, entry in enumerate(entries_of(bundle.target_tokenizer, model.target_vocabulary))}
    tokenizer = bundle.source_tokenizer
    tokens = [[entries[token] for token in as_given(tokenizer, tokenizer.as_source(ids))] for ids in sources]
    threads: dict[str, Any] = {"inter_threads": 1, "intra_threads": torch.get_num_threads()}
    most = min(_OUTPUT, model.max_positions - 1)
    if model.single:
        generator = ctranslate2.Generator(str(folder), compute_type=kind, **threads)
        start = str(bundle.target_tokenizer.backend.id_to_token(bundle.target_tokenizer.bos))
        rows = [[start, *(entries[token] for token in ids)] for ids in sources]
        answers = generator.forward_batch(rows)
        return [list(ids) for ids in sources], [np.array(answers)[place, : len(row)] for place, row in enumerate(rows)]
    translator = ctranslate2.Translator(str(folder), compute_type=kind, **threads)
    found = translator.translate_batch(
        tokens,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=most,
        return_end_token=True,
        return_logits_vocab=True,
        max_input_length=0,
    )
    return [[places[token] for token in each.hypotheses[0]] for each in found], [
        np.stack([np.array(step).reshape(-1) for step in each.logits[0]]) for each in found
    ]


@torch.inference_mode()
def _compare(
    bundle: Bundle, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], logits: Sequence[Any], rows: int
) -> tuple[float, int]:
    """The largest difference of logits, given the same tokens so far, and how many outputs are greedy here too."""
    target = bundle.target_tokenizer
    largest, same = 0.0, 0
    for source, output, theirs in zip(sources, outputs, logits, strict=True):
        ours = _logits(bundle, source, [target.bos, *output][: len(theirs)])[:, :rows].numpy()  # (T, V)
        largest = max(largest, float(np.abs(ours - theirs[:, :rows]).max()))
        same += bool((ours.argmax(1) == theirs[:, :rows].argmax(1)).all())
    return largest, same


def _logits(bundle: Bundle, source: Sequence[int], target: Sequence[int]) -> Tensor:
    device = bundle.model.output.weight.device
    ids = torch.tensor([target], device=device)
    if bundle.config.model.single:
        return bundle.language_model.forward(ids)[0].float().cpu()
    tokens = torch.tensor([bundle.source_tokenizer.as_source(source)], device=device)
    return bundle.encoder_decoder.forward(tokens, ids)[0].float().cpu()
