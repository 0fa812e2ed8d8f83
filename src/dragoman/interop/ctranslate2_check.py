"""Whether CTranslate2 computes from a folder what our model computes: logits side by side, and greedy outputs.

Shapes:  B sources   S, T source and target tokens   V vocabulary there
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.errors import DragomanError
from dragoman.interop.ctranslate2_vocabulary import entries_of

CLOSE = 1e-4
"""Largest difference of logits in float32, as a part of the largest logit where that is above 1."""

_SAMPLES, _LONGEST, _OUTPUT = 16, 12, 24  # sources, and most tokens of a source and of an output
_log = logging.getLogger("dragoman")


@dataclass(frozen=True)
class Checked:
    """What a check found: against what, the largest difference of logits, and how many greedy outputs of how many are the same.

    ``difference`` and ``same`` are None where CTranslate2 is not installed. ``notes`` say what else is to be known.
    """

    against: str
    difference: float | None
    same: int | None
    of: int
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The finding in words."""
        if self.difference is None:
            return f"read back: {self.against}"
        found = f"logits differ by at most {self.difference:.2g}, {self.same} of {self.of} greedy outputs are the same"
        return f"checked against {self.against}: {found}"


def installed_version() -> str:
    """The version of CTranslate2 that is installed; empty where there is none."""
    if find_spec("ctranslate2") is None:
        return ""
    import ctranslate2

    return str(ctranslate2.__version__)


def check_folder(bundle: Bundle, folder: Path, *, rows: int, original: Bundle | None = None, quantized: bool = False) -> Checked:
    """Compares a bundle that was read from a folder with what CTranslate2 computes from it in float32.

    ``rows`` are the entries of the target vocabulary there. After an export ``original`` is the model that was written: without
    quantisation its weights must be those that were read, to the last bit; with it the greedy outputs that CTranslate2 finds in 8 bits
    are compared with the original's, and how many are the same is said. Raises DragomanError when they differ by more than `CLOSE`.
    """
    if original is not None and not quantized:
        _require_same_weights(original, bundle)
    if not installed_version():
        return Checked("CTranslate2 is not installed, so nothing was computed with it; pip install 'dragoman[ctranslate2]'", None, None, 0)
    sources = sample_sources(bundle)
    outputs, logits = _ask(bundle, folder, sources, "float32")
    difference, same = _compare(bundle, sources, outputs, logits, rows)
    checked = Checked(f"CTranslate2 {installed_version()}", difference, same, len(sources))
    if same < len(sources) or not difference <= CLOSE * max(1.0, max(float(np.abs(each).max()) for each in logits)):
        raise DragomanError(f"{folder}: not the same model as here: {checked.sentence()}; please report it with the model's config.json")
    if original is None or not quantized:
        return checked
    outputs, logits = _ask(bundle, folder, sources, "int8")
    difference, same = _compare(original, sources, outputs, logits, rows)
    note = f"CTranslate2 computing in 8 bits: logits differ from the model's by at most {difference:.2g}, {same} of {len(sources)} greedy "
    note += "outputs are the same"
    return Checked(checked.against, checked.difference, checked.same, checked.of, (note,))


def sample_sources(bundle: Bundle) -> list[list[int]]:
    """Sources in ids, without what stands around them, of different lengths and always the same; with a tag where the model wants one."""
    tokenizer, choose = bundle.source_tokenizer, random.Random(0)
    head = list(tokenizer.tags.values())[:1]
    usable = [token for token in range(len(tokenizer)) if token not in tokenizer.textless and token != tokenizer.unk]
    longest = min(_LONGEST, bundle.config.model.max_positions - 3)
    return [[*head, *choose.choices(usable, k=1 + number % longest)] for number in range(_SAMPLES)]


def _require_same_weights(original: Bundle, read: Bundle) -> None:
    theirs = dict(read.model.named_parameters())
    wrong = [name for name, value in original.model.named_parameters() if not torch.equal(value.float().cpu(), theirs[name])]
    if wrong or original.config != read.config:
        raise DragomanError(f"the folder does not give back what was written: {', '.join(wrong) or 'other settings'}; please report it")


def _ask(bundle: Bundle, folder: Path, sources: Sequence[Sequence[int]], kind: str) -> tuple[list[list[int]], list[Any]]:
    """CTranslate2's greedy outputs in ids, the end token included, and the logits (T, V) of each step."""
    import ctranslate2

    model = bundle.config.model
    entries = entries_of(bundle.source_tokenizer, model.source_vocabulary)
    places = {entry: place for place, entry in enumerate(entries_of(bundle.target_tokenizer, model.target_vocabulary))}
    tokens = [[entries[token] for token in ids] for ids in sources]
    threads: dict[str, Any] = {"inter_threads": 1, "intra_threads": torch.get_num_threads()}
    most = min(_OUTPUT, model.max_positions - 1)
    if model.single:
        generator = ctranslate2.Generator(str(folder), compute_type=kind, **threads)
        start = str(bundle.target_tokenizer.backend.id_to_token(bundle.target_tokenizer.bos))
        rows = [[start, *row] for row in tokens]
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
