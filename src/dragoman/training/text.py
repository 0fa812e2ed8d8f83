"""What a run of a model of one sequence is made from: its settings, its tokenizer and its corpora (Section 5.1)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.config import Config, DataConfig, TrainingConfig
from dragoman.data.corpus import Corpus
from dragoman.data.documents import read_documents, text_files, whole_documents
from dragoman.data.masking import Masking
from dragoman.data.packing import PackedCorpus, open_packed, pack
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import UsageError

logger = logging.getLogger("dragoman")

_OF_PAIRS = (
    "data.weights", "data.alignments", "data.tags", "data.valid_tags", "data.joint_vocabulary", "data.target_tokenizer", "data.bpe_dropout",
    "data.max_length", "training.shard", "training.alignment_weight", "training.bleu_tokenize", "training.bleu_lowercase",
)  # fmt: skip
_OF_TEXT = ("data.documents", "training.sampled_batches")
_OF_DECODERS = ("training.validation_stride",)
_OF_ENCODERS = ("data.mask_probability", "data.mask_words")
_VALIDATION_SEED = 0  # of the masks: the same for every run, so that losses can be compared


def check_text_settings(config: Config) -> None:
    """UsageError for settings of the data and the training that mean nothing to this kind of model, or that it cannot do with."""
    data, model, training = config.data, config.model, config.training
    kind = model.architecture
    idle = {"decoder-only": (*_OF_PAIRS, *_OF_ENCODERS), "encoder-only": (*_OF_PAIRS, *_OF_DECODERS)}
    names = idle.get(kind, (*_OF_TEXT, *_OF_DECODERS, *_OF_ENCODERS))
    if given := [name for name in names if _value(config, name) != _default(name)]:
        raise UsageError(f"{' and '.join(given)}: not for a model with model.architecture={kind}; leave it out")
    if not model.single:
        return
    if data.target:
        raise UsageError(
            f"{data.source}-{data.target}: a model that is {kind} learns from text in one language; give one code, such as {data.source}"
        )
    if data.tokenizer == "whitespace" and data.documents != "line":
        raise UsageError("data.tokenizer=whitespace has no entry for the end of a line; set data.documents=line, or take another tokenizer")
    if training.validation_stride > model.max_positions:
        raise UsageError(
            f"training.validation_stride={training.validation_stride} would pass over text, for the context has model.max_positions="
            f"{model.max_positions} tokens; give at most that"
        )
    if kind == "encoder-only" and model.max_positions < 4:
        raise UsageError(f"model.max_positions={model.max_positions} leaves no room between start and end token; give more")
    if model.pooler and not training.start_from:
        raise UsageError("model.pooler=true: masked text trains no pooler; leave it out, or go on from a model that has one (--from)")


def learn_tokenizer(config: Config) -> Tokenizer:
    """A tokenizer of the training text, with a mask where the model needs one."""
    data = config.data
    pieces = read_documents(text_files(data.train), documents=data.documents)
    return Tokenizer.train(
        (piece.text for piece in pieces),
        kind=data.tokenizer, vocabulary_size=data.vocabulary_size, normalization=data.normalization, joiner=data.joiner,
        mask=config.model.architecture == "encoder-only",
    )  # fmt: skip


def text_corpora(folder: Path, config: Config, tokenizer: Tokenizer) -> tuple[PackedCorpus, PackedCorpus | None]:
    """The training text and the validation text in blocks, encoded into folders of ``folder`` or opened there.

    Raises UsageError for a batch budget that is less than a block.
    """
    data, model, training = config.data, config.model, config.training
    corpora: list[PackedCorpus | None] = []
    for name, specs, seed in (("train", data.train, training.seed), ("valid", data.valid, _VALIDATION_SEED)):
        if not specs:
            corpora.append(None)
            continue
        masking = None
        if model.architecture == "encoder-only":
            masking = Masking.of(tokenizer, probability=data.mask_probability, words=data.mask_words, seed=seed)
        stride = training.validation_stride if name == "valid" else 0
        corpus = _packed(folder / name, specs, config, tokenizer).in_blocks(size=model.max_positions, stride=stride, masking=masking)
        longest = int(corpus.target_lengths.max())
        if training.batch_tokens != "auto" and longest > training.batch_tokens:
            raise UsageError(
                f"training.batch_tokens={training.batch_tokens} is less than a block of text, which has model.max_positions="
                f"{model.max_positions} tokens; set it to at least {longest}, or lower model.max_positions"
            )
        corpora.append(corpus)
    train, valid = corpora
    assert train is not None
    return train, valid


def _packed(folder: Path, specs: Sequence[str], config: Config, tokenizer: Tokenizer) -> PackedCorpus:
    if (folder / "corpus.json").exists():
        return open_packed(folder)
    pieces = read_documents(text_files(specs), documents=config.data.documents)
    corpus = pack(folder, whole_documents(pieces) if tokenizer.kind == "foreign" else pieces, tokenizer)
    if corpus.unknown:
        notice = "%s: %d of %d tokens are not in the vocabulary and become <unk>"
        logger.warning(notice, folder.name, corpus.unknown, corpus.tokens - corpus.texts[0])
    return corpus


def corpus_facts(train: Corpus, valid: Corpus | None) -> dict[str, Any]:
    """What run.json says of the size of the data: pairs and those dropped, or documents, tokens and characters."""
    corpora = {"train": train, "valid": valid}
    if isinstance(train, PackedCorpus):
        packed = {name: corpus for name, corpus in corpora.items() if isinstance(corpus, PackedCorpus)}
        return {
            "documents": {name: corpus.texts[0] for name, corpus in packed.items()},
            "tokens": {name: corpus.tokens for name, corpus in packed.items()},
            "characters": {name: corpus.texts[1] for name, corpus in packed.items()},
        }
    return {
        "pairs": {name: len(corpus) if corpus else 0 for name, corpus in corpora.items()},
        "dropped": {name: corpus.dropped if corpus else {} for name, corpus in corpora.items()},
    }


def _value(config: Config, name: str) -> object:
    group, _, key = name.partition(".")
    return getattr(getattr(config, group), key)


def _default(name: str) -> object:
    group, _, key = name.partition(".")
    return (DataConfig.model_fields if group == "data" else TrainingConfig.model_fields)[key].default
