"""The ``transformers`` package as the other side of a comparison, where it is installed; nothing else here imports it."""

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle
from dragoman.errors import DragomanError
from dragoman.interop.verify import Verification, compare, compare_texts
from dragoman.model.transformer import LanguageModel, Transformer

_log = logging.getLogger("dragoman")


def is_installed() -> bool:
    """Whether there is a ``transformers`` package."""
    return importlib.util.find_spec("transformers") is not None


def compare_with_folder(bundle: Bundle, folder: Path) -> Verification:
    """The bundle against what ``transformers`` makes of a folder: logits, greedy outputs, and the ids of texts by its AutoTokenizer.

    Raises DragomanError when it cannot load the folder.
    """
    import transformers

    with _quiet():
        try:
            model = _load(bundle, folder)
        except Exception as error:  # what its loaders raise is not told
            raise DragomanError(f"{folder}: transformers {transformers.__version__} cannot load the model: {_first_line(error)}") from None

        def logits(source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
            given: dict[str, Any] = {"input_ids": source, "attention_mask": mask.long()}
            if isinstance(bundle.model, Transformer):
                given["decoder_input_ids"] = target
            elif isinstance(bundle.model, LanguageModel):
                given["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
            output = model(**given)
            found: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
            return found.float()

        found = compare(bundle, logits, against=f"transformers {transformers.__version__}")
        return _with_texts(bundle, folder, found)


def _load(bundle: Bundle, folder: Path) -> Any:
    import transformers

    if isinstance(bundle.model, Transformer):
        kind: Any = transformers.AutoModelForSeq2SeqLM
    elif isinstance(bundle.model, LanguageModel):
        kind = transformers.AutoModelForCausalLM
    else:
        kind = transformers.AutoModelForMaskedLM if bundle.config.model.output_transform else transformers.AutoModel
    return kind.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True).eval()


def _with_texts(bundle: Bundle, folder: Path, found: Verification) -> Verification:
    import transformers

    try:
        other: Any = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        found.notices.append(f"transformers cannot load the tokenizer, so no texts are compared: {_first_line(error)}")
        return found
    source = bundle.source_tokenizer
    tag = "".join(f">>{name}<< " for name in [*source.tags][:1])

    def ours(text: str) -> list[int]:
        head, rest = source.split_tag(tag + text, place="sample")
        ids = [*head, *source.encode(rest)]
        if isinstance(bundle.model, Transformer):
            return source.as_source(ids)
        return [*source.opening, *ids] if isinstance(bundle.model, LanguageModel) else [source.bos, *ids, source.eos]

    def theirs(text: str) -> list[int]:
        ids: list[int] = other(tag + text)["input_ids"]
        return ids

    return compare_texts(found, ours, theirs)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without its notices, progress bars and advice, and without the network."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    said: Any = transformers.logging
    level = said.get_verbosity()
    said.set_verbosity_error()
    said.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        said.set_verbosity(level)
        said.enable_progress_bar()
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
