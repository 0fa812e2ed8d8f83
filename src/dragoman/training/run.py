"""A run folder before its first step: settings, facts about the data, tokenizers and corpora (Section 5.1)."""

import errno
import hashlib
import json
import logging
import os
import platform
import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from dragoman.bundle import list_checkpoints, load_tokenizers, save_tokenizers, version_of
from dragoman.config import LARGEST, Config, Settings
from dragoman.data.alignments import WordLinks, aligned_corpus, read_aligned
from dragoman.data.corpus import Corpus
from dragoman.data.documents import text_files
from dragoman.data.formats.lines import read_lines
from dragoman.data.formats.pairs import corpus_files, read_pairs
from dragoman.data.segmentation import sampled_corpus
from dragoman.data.tokenizer import Kind, Tokenizer, tag_text
from dragoman.errors import DragomanError, UsageError
from dragoman.files import write_file
from dragoman.presets import PRESETS, count_parameters
from dragoman.toml import read_toml, to_toml
from dragoman.training.aligning import check_alignment_settings, layer_to_align
from dragoman.training.records import last_step, read_run
from dragoman.training.start import describe_start, starting_tokenizers, starting_vocabularies
from dragoman.training.text import check_text_settings, corpus_facts, learn_tokenizer, text_corpora

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("dragoman")

_OF_EVALUATIONS = ("best_by", "bleu_tokenize", "bleu_lowercase", "validation_stride")


@dataclass(frozen=True)
class Prepared:
    """What training starts from: settings with the vocabularies' sizes, tokenizers and corpora."""

    config: Config
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    corpus: Corpus
    validation: Corpus | None

    def fingerprints(self) -> dict[str, str]:
        """What a resumed run must share."""
        return {
            "training data": self.corpus.fingerprint,
            "source tokenizer": self.source_tokenizer.fingerprint,
            "target tokenizer": self.target_tokenizer.fingerprint,
        }


def check_new_run(run: Path, config: Config) -> None:
    """Raises UsageError when the folder is a run already or holds something else, or when the settings or the data's names do not fit."""
    if (run / "run.json").exists():
        raise UsageError(f"{run}: already a run; continue it with --resume, or choose another --out")
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UsageError(f"{run}: not an empty folder; choose another --out")
    check_settings(config)
    _check_evaluations(config)
    if config.model.tie == "all" and not config.data.joint_vocabulary:
        raise UsageError("model.tie='all' needs one vocabulary; set data.joint_vocabulary=true or model.tie=decoder")
    _data_files(config)


def create_run(run: Path, config: Config, argv: Sequence[str]) -> None:
    """Makes the folder of a new run with run.json and config.toml.

    Raises what ``check_new_run`` raises, and DragomanError when the folder cannot be written.
    """
    check_new_run(run, config)
    start = config.training.start_from
    started = {"from": describe_start(start)} if start else {}
    existed = run.exists()
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DragomanError(f"{run}: cannot make the run folder: {error.strerror}; choose another --out") from None
    facts = {
        "argv": list(argv),
        "seed": config.training.seed,
        "versions": {name: version_of(name) for name in ("dragoman", "torch", "tokenizers", "numpy")}
        | {"python": platform.python_version()},
        "platform": platform.platform(),
        "settings": config.model_dump(mode="json"),
        **started,
    }
    try:
        write_file(run / "config.toml", to_toml(config))
        update_run(run, status="preparing", started=time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts)
    except DragomanError:
        discard_run(run, keep_folder=existed)
        raise


def check_whole_settings(run: Path) -> None:
    """Raises DragomanError when config.toml lacks settings that run.json has, as it does when its end is lost: defaults are not theirs."""
    path, known = run / "config.toml", read_run(run).get("settings", {})
    there = read_toml(path)
    groups = {name: group for name, group in known.items() if isinstance(group, dict)}
    lost = [
        f"{name}.{key}"
        for name, group in groups.items()
        for key, value in group.items()
        if value is not None and key not in there.get(name, {})
    ]
    if lost:
        raise DragomanError(
            f"{path}: {len(lost)} settings of the run are missing, {lost[0]} first, so the file is damaged; write them there again as "
            'run.json has them under "settings", or start a new run'
        )


def check_settings(config: Config) -> None:
    """UsageError for settings of a training that would do nothing."""
    check_text_settings(config)
    check_alignment_settings(config)
    if config.training.patience and not config.data.valid:
        raise UsageError("training.patience needs evaluations; give --valid PATH, or leave it at 0")


def _check_evaluations(config: Config) -> None:
    """UsageError for settings of evaluations in a new run without any; one that was begun with them goes on as it is."""
    if config.data.valid:
        return
    recipe = PRESETS[config.preset].changes.get("training", {}) if config.preset in PRESETS else {}
    usual = {name: recipe.get(name, _default(config.training, name)) for name in _OF_EVALUATIONS}
    if given := [name for name, value in usual.items() if getattr(config.training, name) != value]:
        named = " and ".join(f"training.{name}={getattr(config.training, name)}" for name in given)
        raise UsageError(f"{named}: for evaluations, and there is no validation text; give --valid PATH, or leave it out")


def discard_run(run: Path, *, keep_folder: bool) -> None:
    """Removes what a run without a checkpoint has written, and its folder unless that was there before."""
    if list_checkpoints(run):
        return
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    if not keep_folder:
        run.rmdir()


@contextmanager
def sole_writer(run: Path) -> Iterator[None]:
    """Holds the run folder for this process, so that two trainings never write into one; the hold dies with the process.

    Raises DragomanError when another process has it. Where the system, or the file system, has no such locks nothing is held.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(run, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DragomanError(f"{run}: another process is training in it; wait for its end, or choose another --out") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
        yield
    finally:
        os.close(handle)


def update_run(run: Path, **facts: Any) -> None:
    """Replaces facts in run.json; a fact of None is taken out."""
    known = {name: fact for name, fact in (read_run(run) | facts).items() if fact is not None}
    write_file(run / "run.json", json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def prepare(run: Path, config: Config) -> Prepared:
    """Tokenizers and corpora of a run, made from its data or taken from its folder when they are there.

    The settings of the run are not written: that is for `record_run`. Raises DragomanError for data that cannot be used, or that changed
    since the run began, naming the file; UsageError for a batch budget that the corpora of the folder do not fit.
    """
    files = _unchanged_files(run, config)
    if read_run(run).get("data") != files:
        update_run(run, data=files)
    data = config.data
    if not (run / "corpus" / "train-alignments").exists():
        deque(chain.from_iterable(_aligned_pairs(config)), maxlen=0)  # a fault in them is told before a vocabulary is learnt
    try:
        source, target = load_tokenizers(run)
    except DragomanError as error:
        if "fingerprints" in read_run(run) and any(run.glob("tokenizer*.json")):  # training has begun with them
            raise DragomanError(f"{error}; the run's checkpoints have it too") from None
        source, target = starting_tokenizers(run, data.tags) if config.training.start_from else _train_tokenizers(config)
        try:
            save_tokenizers(run, source, target)
        except OSError as error:
            raise DragomanError(f"{run}: cannot write the tokenizer: {error.strerror}; make room or choose another --out") from None
    corpus, validation = _corpora(run / "corpus", config, source, target)
    rows = starting_vocabularies(run) if config.training.start_from else (0, 0)  # more than entries, perhaps
    sizes = {"source_vocabulary": max(len(source), rows[0]), "target_vocabulary": max(len(target), rows[1])}
    sized = config.with_values(model={**sizes, "pad": target.pad, "alignment_layer": layer_to_align(config)})
    return Prepared(sized, source, target, corpus, validation)


def record_run(run: Path, prepared: Prepared, *, machine: Mapping[str, Any], resumed: Mapping[str, Any] | None = None) -> None:
    """Writes config.toml and run.json of a run that is about to train, once nothing stands in its way.

    ``machine`` says on what it trains; ``resumed`` how a run goes on, which is kept beside those before.
    """
    config, corpus, validation = prepared.config, prepared.corpus, prepared.validation
    if resumed and not resumed["step"] and (lost := last_step(run)):  # an error, to be said under --quiet too
        logger.error("%s: there is no checkpoint to go on from, so the %d updates in its log.jsonl are made anew", run, lost)
    write_file(run / "config.toml", to_toml(config))
    again = {"resumed": [*read_run(run).get("resumed", []), dict(resumed)]} if resumed else {}
    update_run(
        run,
        status="running",
        error=None,
        seed=config.training.seed,
        settings=config.model_dump(mode="json"),
        parameters=count_parameters(config.model),
        fingerprints=prepared.fingerprints(),
        **corpus_facts(corpus, validation),
        **machine,
        **again,
    )


def idle_settings(given: Config, used: Config) -> list[str]:
    """A sentence for each setting that differs from its default and does nothing, or less than one may think.

    ``used`` is ``given`` with the vocabularies of the tokenizers.
    """
    training, sentences = used.training, []
    idle = "learning_rate" if training.schedule == "paper" else "factor"
    if (value := getattr(training, idle)) != _default(training, idle):
        instead = "factor scales it" if idle == "learning_rate" else "its peak is learning_rate"
        sentences.append(f"training.{idle}={value:g} does nothing under training.schedule={training.schedule}; {instead}")
    model = used.model
    if training.rdrop and not (model.dropout or model.attention_dropout or model.activation_dropout):
        sentences.append(f"training.rdrop={training.rdrop:g} does nothing but take time without model.dropout; both passes are the same")
    for name in ("source_vocabulary", "target_vocabulary", "pad"):
        value, chosen = getattr(given.model, name), getattr(model, name)
        if value not in (chosen, _default(given.model, name)):
            sentences.append(f"model.{name}={value} does nothing in training; the tokenizer sets it to {chosen}")
    return sentences


def _corpora(folder: Path, config: Config, source: Tokenizer, target: Tokenizer) -> tuple[Corpus, Corpus | None]:
    data = config.data
    if config.model.single:
        return text_corpora(folder, config, target)
    corpus = _corpus(folder / "train", data.train, data.tags, config, source, target)
    if data.bpe_dropout:
        longest = min(data.max_length, config.model.max_positions)
        corpus = sampled_corpus(folder / "train-words", corpus, source, target, dropout=data.bpe_dropout, longest=longest)
    if data.alignments:
        pairs = chain.from_iterable(_aligned_pairs(config))
        corpus = aligned_corpus(folder / "train-alignments", corpus, pairs, source, target, tagged=bool(data.tags))
    return corpus, _corpus(folder / "valid", data.valid, data.validation_tags, config, source, target) if data.valid else None


def _default(settings: Settings, name: str) -> object:
    return type(settings).model_fields[name].default


def _corpus(folder: Path, specs: Sequence[str], tags: Sequence[str], config: Config, source: Tokenizer, target: Tokenizer) -> Corpus:
    budget = LARGEST if config.training.batch_tokens == "auto" else config.training.batch_tokens
    if (folder / "corpus.json").exists():
        corpus = Corpus.open(folder)
        longest = max(int(corpus.source_lengths.max()), int(corpus.target_lengths.max()))
        if longest > budget:
            raise UsageError(
                f"training.batch_tokens={budget} is less than the {longest} tokens of the longest pair in {folder}; set it to at "
                "least that, or start a new run"
            )
        return corpus
    corpus = Corpus.build(
        folder,
        *(read_pairs(spec, config.data.source, config.data.target) for spec in specs),
        source_tokenizer=source,
        target_tokenizer=target,
        max_length=min(config.data.max_length, config.model.max_positions),
        batch_tokens=budget,
        tags=tags,
    )
    if config.training.start_from and corpus.unknown:
        words = len(corpus.source_ids) + len(corpus.target_ids) - (3 if tags else 2) * len(corpus)  # without end tokens and tags
        notice = "%s: %d of %d words are not in the vocabulary of the model that training goes on from and become <unk>"
        logger.warning(notice, folder.name, corpus.unknown, words)
    return corpus


def _train_tokenizers(config: Config) -> tuple[Tokenizer, Tokenizer]:
    data = config.data
    if config.model.single:
        tokenizer = learn_tokenizer(config)
        return tokenizer, tokenizer
    if not data.joint_vocabulary:
        source = _train_tokenizer(config, (pair[0] for pair in _pairs(data.train, config)), tags=data.tags)
        return source, _train_tokenizer(config, (pair[1] for pair in _pairs(data.train, config)), kind=data.target_tokenizer)
    joint = _train_tokenizer(config, chain.from_iterable(_pairs(data.train, config)), tags=data.tags)
    return joint, joint


def _train_tokenizer(config: Config, lines: Iterator[str], tags: Sequence[str] = (), *, kind: Kind | Literal[""] = "") -> Tokenizer:
    """``kind`` is another than that of the settings."""
    data = config.data
    kind = kind or data.tokenizer
    joiner = data.joiner if kind == "whitespace" else ""
    return Tokenizer.train(
        lines, kind=kind, vocabulary_size=data.vocabulary_size, normalization=data.normalization, joiner=joiner, tags=tags
    )


def _pairs(specs: Sequence[str], config: Config) -> Iterator[tuple[str, str]]:
    return chain.from_iterable(read_pairs(spec, config.data.source, config.data.target) for spec in specs)


def _aligned_pairs(config: Config) -> Iterator[Iterator[tuple[tuple[str, str], WordLinks]]]:
    data = config.data
    for spec, name in zip(data.train, data.alignments, strict=bool(data.alignments)):
        yield read_aligned(spec, data.source, data.target, Path(name) if name else None)


def read_validation(config: Config) -> Iterator[tuple[str, str]]:
    """The validation pairs as they are to be translated: each source behind the language tag of its corpus, where there are tags."""
    data = config.data
    heads = [f"{tag_text(tag)} " for tag in data.validation_tags] or [""] * len(data.valid)
    for head, spec in zip(heads, data.valid, strict=True):
        for source, target in read_pairs(spec, data.source, data.target):
            yield f"{head}{source}", target


def _data_files(config: Config) -> list[Path]:
    data = config.data
    if not data.train:
        raise UsageError("no training data; give --train PATH")
    if config.model.single:
        return text_files((*data.train, *data.valid))
    alignments = [Path(name) for name in data.alignments if name]
    if missing := [path for path in alignments if not path.is_file()]:
        raise UsageError(f"--alignments {missing[0]}: no such file; give a file of Pharaoh lines, such as 0-0 1-2, one for each pair")
    return [*(path for spec in (*data.train, *data.valid) for path in corpus_files(spec, data.source, data.target)), *alignments]


def _unchanged_files(run: Path, config: Config) -> list[dict[str, Any]]:
    """Path, lines and SHA-256 of every data file; DragomanError for one that is not what run.json says, or is not among those there."""
    known = {entry["path"]: entry for entry in read_run(run).get("data", [])}
    described = []
    for path in _data_files(config):
        if known and str(path) not in known:  # a plain file goes before a compressed one
            raise DragomanError(
                f"{path}: not a file that the run {run} began with, which are {', '.join(known)}; move it away and put back what is "
                "missing, or start a new run"
            )
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        before = known.get(str(path), {"sha256": digest})
        if before["sha256"] != digest:
            raise DragomanError(f"{path}: changed since the run {run} began; restore the file, or start a new run")
        lines = before["lines"] if "lines" in before else sum(1 for _ in read_lines(path))
        described.append({"path": str(path), "lines": lines, "sha256": digest})
    return described
