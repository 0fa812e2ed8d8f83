"""``dragoman train``: parallel text, or text in one language, in; a run folder with checkpoints out."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import (
    AlignmentFiles,
    DryRun,
    MaxMinutes,
    Overrides,
    Precision,
    Quiet,
    ResumedRun,
    StartFrom,
    TensorBoardFiles,
    TrainingData,
    TrainingDevice,
    ValidationData,
)
from dragoman.cli.stops import interruptible, say_farewell, terminable
from dragoman.cli.streams import follows, hush, launched, notify
from dragoman.config import Config
from dragoman.errors import DragomanError, UsageError
from dragoman.files import passing_folder
from dragoman.presets import resolve_config

if TYPE_CHECKING:
    import torch

    from dragoman.bundle import Bundle
    from dragoman.training.distributed import Ranks
    from dragoman.training.log import RunLog
    from dragoman.training.preflight import Preflight
    from dragoman.training.run import Prepared
    from dragoman.training.trainer import Score, Trainer


def train(
    pair: Annotated[
        str | None,
        typer.Argument(
            metavar="PAIR", help="Languages of source and target, such as en-de; one code, such as en, for a model of one sequence."
        ),
    ] = None,
    training_data: TrainingData = None,
    validation_data: ValidationData = None,
    alignments: AlignmentFiles = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run folder to make, or with --resume to continue.")] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="Settings to start from; see `dragoman presets`. Default: base.")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file of settings over the preset's.")] = None,
    overrides: Overrides = None,
    start: StartFrom = None,
    resume: ResumedRun = False,
    max_steps: Annotated[int | None, typer.Option("--max-steps", metavar="N", min=1, help="Updates after which to stop.")] = None,
    max_minutes: MaxMinutes = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Seed of weights, dropout and the order of the data.")
    ] = None,
    device: TrainingDevice = None,
    precision: Precision = None,
    tensorboard: TensorBoardFiles = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on parallel text, or a language model on text; the run folder holds settings, tokenizer, log, report and checkpoints.

    On N devices: `torchrun --nproc-per-node N -m dragoman train ...`; each update is shared out among N processes.
    """
    if quiet or follows():
        hush()
    out = _named(out)
    if dry_run and resume:
        raise UsageError("--dry-run is for a new run; leave out --resume")
    data = {"train": training_data, "valid": validation_data, "alignments": alignments, **_languages(pair)}
    training = {"max_steps": max_steps, "max_minutes": max_minutes, "seed": seed, "precision": precision, "device": device}
    training |= {"start_from": None if start is None else str(start), "tensorboard": tensorboard}
    flags = {
        group: {key: value for key, value in values.items() if value is not None and value != []}
        for group, values in (("data", data), ("training", training))
    }
    changes = None
    if resume:
        settings, changes = _resumed_settings(out, preset or config, overrides, flags)
    else:
        settings = resolve_config(preset, config, overrides, flags, model=_model_settings)
        _check_languages(settings)
    if dry_run:
        _rehearse(out, settings)
    else:
        _start(out, settings, changes=changes, quiet=quiet)


def _named(out: Path | None) -> Path:
    if out is None:
        raise UsageError("no run folder; give --out DIR")
    if any("\ud800" <= character <= "\udfff" for character in str(out)):
        raise UsageError(f"--out {str(out)!r}: not UTF-8, so no record can name it; choose another")
    return out


def _languages(pair: str | None) -> dict[str, str]:
    if pair is None:
        return {}
    source, dash, target = pair.partition("-")
    if not source or (dash and not target) or source == target:
        raise UsageError(f"{pair!r} is not SOURCE-TARGET; give two different language codes, such as en-de, or one for a language model")
    return {"source": source, "target": target}


def _check_languages(settings: Config) -> None:
    data, model = settings.data, settings.model
    if not data.source:
        raise UsageError("no languages; give PAIR, such as en-de")
    if not (data.target or model.single):
        raise UsageError(
            f"{data.source!r} is not SOURCE-TARGET, and the model is {model.architecture}; give two different language codes, such as "
            f"{data.source}-de, or a --preset of a model of one sequence, such as gpt-mini"
        )


def _model_settings(start: str) -> Config:
    from dragoman.bundle import load_config, resolve_model

    return load_config(resolve_model(start))


def _resumed_settings(
    out: Path, base: object, overrides: list[str] | None, flags: Mapping[str, Mapping[str, Any]]
) -> tuple[Config, list[str]]:
    """The run's own settings with changes of its training and decoding over them, and the changes in words.

    Raises UsageError for what cannot change.
    """
    if base:
        raise UsageError("--resume goes on with the run's own settings; leave out --preset and --config, and change single ones with --set")
    if not (out / "config.toml").is_file():
        if (out / "run.json").is_file():
            raise DragomanError(
                f'{out}: the run has no config.toml; write it again as run.json has the settings under "settings", or start a new run '
                "with another --out"
            )
        raise UsageError(f"{out}: no run to resume; leave out --resume to start one")
    from dragoman.training.run import check_whole_settings

    before = resolve_config(None, out / "config.toml")
    check_whole_settings(out)
    after = resolve_config(None, out / "config.toml", overrides, flags)
    for group in ("model", "data"):
        if changed := _changed(group, before, after):
            raise UsageError(f"--resume: what is in [{group}] cannot change within a run ({changed[0]}); start a new one")
    if after.training.start_from != before.training.start_from:
        began = f"from {before.training.start_from}" if before.training.start_from else "with fresh weights"
        raise UsageError(f"--resume: the run began {began}, and goes on from its own newest checkpoint; leave out --from")
    if after.training.optimizer != before.training.optimizer:
        raise UsageError("--resume: training.optimizer cannot change within a run, for its state is of one kind; start a new one")
    changed = _changed("training", before, after) + _changed("decoding", before, after)
    if changed:
        notify(f"changed settings: {', '.join(changed)}")
    return after, changed


def _changed(group: str, before: Config, after: Config) -> list[str]:
    old, new = getattr(before, group).model_dump(mode="json"), getattr(after, group).model_dump(mode="json")
    return [f"{group}.{name} from {old[name]} to {new[name]}" for name in old if old[name] != new[name]]


def _start(run: Path, settings: Config, *, changes: list[str] | None, quiet: bool) -> None:
    """Trains, alone or as one of the processes that torchrun started."""
    from dragoman.training.distributed import joined

    with joined(settings.training.device) as ranks:
        if ranks.first:
            with terminable() as check:
                received = _train(run, settings, ranks, changes=changes, quiet=quiet, check=check)
        else:
            received = _follow(run, settings, ranks)
    if received:
        raise typer.Exit(128 + received[0])


def _train(run: Path, settings: Config, ranks: "Ranks", *, changes: list[str] | None, quiet: bool, check: Callable[[], None]) -> list[int]:
    """A new run, or with ``changes`` one that goes on; the run's own record of its settings changes only when all is well.

    ``check`` raises if a signal has come that Python has dropped. Returns the signals received.
    """
    from dragoman.devices import machine_facts
    from dragoman.training.log import RunLog, Screen
    from dragoman.training.run import create_run, discard_run, idle_settings, prepare, record_run, sole_writer
    from dragoman.training.tensorboard import TensorBoard

    device = ranks.device
    _check(settings, ranks.size)
    existed = run.exists()
    if changes is None:
        create_run(run, settings, sys.argv)
    log = RunLog(
        run,
        console=None if quiet else Screen(stderr=True, highlight=False),
        max_steps=settings.training.max_steps,
        tensorboard=TensorBoard(run) if settings.training.tensorboard else None,
    )
    with sole_writer(run):
        try:
            prepared = prepare(run, settings)
            ranks.wait()  # now the others open what is prepared
            prepared, known = _settled(prepared, device, ranks)
            trainer = _trainer(run, prepared, log, device, ranks)
            ranks.wait()  # nothing stands in the way of any
            step = trainer.progress.step
            machine = machine_facts(device) | {"precision": trainer.precision, "processes": ranks.size}
            resumed = None if changes is None else {"argv": sys.argv, "step": step, "changed": changes}
            record_run(run, prepared, machine=machine, resumed=resumed)
        except DragomanError:
            if changes is None:
                discard_run(run, keep_folder=existed)  # the same command must work once its data are mended
            raise
        for sentence in idle_settings(settings, prepared.config):
            notify(sentence)
        with log:
            log.say(f"{_headline(prepared, trainer)}  → {run}", *known.lines())
            log.event("resume" if step else "start", step=step, **({"owed": True} if trainer.progress.owed else {}))
            check()
            return _loop(run, trainer, log)


def _follow(run: Path, settings: Config, ranks: "Ranks") -> list[int]:
    """What a rank after the first does: it opens what that one has prepared, takes its part of every update, and writes nothing.

    Returns the signals received.
    """
    from dragoman.training.log import RunLog
    from dragoman.training.run import prepare

    _check(settings, ranks.size)
    ranks.wait()
    prepared, _ = _settled(prepare(run, settings), ranks.device, ranks)
    log = RunLog(run, console=None, max_steps=settings.training.max_steps)
    trainer = _trainer(run, prepared, log, ranks.device, ranks)
    ranks.wait()
    with interruptible(trainer) as received:
        trainer.train()
    return received


def _loop(run: Path, trainer: "Trainer", log: "RunLog") -> list[int]:
    """Trains, and says in run.json, the report and the log how it ended; returns the signals received."""
    from dragoman.training.report import write_report
    from dragoman.training.run import update_run

    try:
        with interruptible(trainer) as received:
            reason = trainer.train()
    except BaseException as error:
        with suppress(DragomanError):  # a full disk, say: the reason to be told is the first one
            update_run(run, status="failed", error=str(error) or type(error).__name__)
            write_report(run)
        raise
    progress = trainer.progress
    log.event("stop", step=progress.step, reason=reason)
    update_run(run, status="stopped" if reason == "interrupted" else "done", step=progress.step, best_step=progress.best_step)
    write_report(run)
    say_farewell(log, run, trainer, reason)
    return received


def _check(settings: Config, processes: int) -> None:
    """Refuses settings that would end a run late, or do nothing: UsageError or DragomanError."""
    from dragoman.evaluation.metrics import check_tokenizer
    from dragoman.training.optimizer import check_optimizer
    from dragoman.training.run import check_settings
    from dragoman.training.tensorboard import check_tensorboard

    check_tokenizer(settings.training.bleu_tokenize)
    check_optimizer(settings.training.optimizer)
    if settings.training.tensorboard:
        check_tensorboard()
    check_settings(settings)
    if settings.training.shard:
        from dragoman.training.sharding import check_sharding

        check_sharding(settings.training, ranks=processes)


def _settled(prepared: "Prepared", device: "torch.device", ranks: "Ranks") -> "tuple[Prepared, Preflight]":
    """What is prepared, with a number for training.batch_tokens=auto, and what is known of the training."""
    from dragoman.training.budget import settle_budget
    from dragoman.training.preflight import preflight

    found = prepared.config.training.batch_tokens == "auto"
    prepared = settle_budget(prepared, device=device, ranks=ranks)
    return prepared, preflight(prepared.config, prepared.corpus, device=device, ranks=ranks, found=found)


def _headline(prepared: "Prepared", trainer: "Trainer") -> str:
    """Languages, sizes and device in one line."""
    from dragoman.data.packing import PackedCorpus
    from dragoman.presets import count_parameters

    data, model, corpus = prepared.config.data, prepared.config.model, prepared.corpus
    text, layers = f"{data.source}→{data.target}  {len(corpus):,} pairs", f"{model.encoder_layers}+{model.decoder_layers}"
    if isinstance(corpus, PackedCorpus):
        text = f"{data.source}  {corpus.texts[1]:,} characters, {corpus.tokens:,} tokens"
        layers = f"{model.decoder_layers if model.architecture == 'decoder-only' else model.encoder_layers}"
    return (
        f"{text}  vocabulary {len(prepared.source_tokenizer):,}  {layers} layers  d_model {model.d_model}  "
        f"{count_parameters(model):,} parameters  {trainer.device} {trainer.precision}"
        + (f"  {trainer.ranks.size} processes" if trainer.ranks.size > 1 else "")
    )


def _rehearse(out: Path, settings: Config) -> None:
    """Print what the run would take: all is prepared as for it, in a folder beside that goes when that is done."""
    from dragoman.devices import pick_device
    from dragoman.training.distributed import ALONE
    from dragoman.training.log import RunLog
    from dragoman.training.preflight import measured_lines
    from dragoman.training.run import check_new_run, create_run, prepare

    if launched():
        raise UsageError("--dry-run measures one process; start it without torchrun")
    device = pick_device(settings.training.device)
    _check(settings, 1)
    check_new_run(out, settings)
    with passing_folder(out) as folder:
        run = folder / "run"
        create_run(run, settings, sys.argv)
        prepared, known = _settled(prepare(run, settings), device, ALONE)
        log = RunLog(run, console=None, max_steps=settings.training.max_steps)
        trainer = _trainer(run, prepared, log, device, ALONE)
        print(_headline(prepared, trainer), *known.lines(), sep="\n", flush=True)
        print(*measured_lines(trainer, known), sep="\n")


def _trainer(run: Path, prepared: "Prepared", log: "RunLog", device: "torch.device", ranks: "Ranks") -> "Trainer":
    """A trainer of fresh weights or those of the model to go on from, or of the newest checkpoint and at its place."""
    from dragoman.bundle import Bundle, load_bundle, newest_checkpoint
    from dragoman.devices import keep_freed_memory
    from dragoman.model.build import build_model
    from dragoman.training.start import starting_model
    from dragoman.training.trainer import Trainer, seed_everything

    keep_freed_memory()
    settings, source, target = prepared.config, prepared.source_tokenizer, prepared.target_tokenizer
    checkpoint = newest_checkpoint(run)
    seed_everything(settings.training.seed)
    if checkpoint:
        model = load_bundle(checkpoint).model
    else:
        model = starting_model(run, settings.model, source, target) if settings.training.start_from else build_model(settings.model)
    trainer = Trainer(
        Bundle(settings, model, source, target), prepared.corpus,
        run=run, log=log, device=device, validation=prepared.validation,
        score=_validation_score(run, prepared) if ranks.first else None, facts=prepared.fingerprints(), ranks=ranks,
    )  # fmt: skip
    if checkpoint:
        trainer.resume(checkpoint)
    return trainer


def _validation_score(run: Path, prepared: "Prepared") -> "Score | None":
    """Greedy BLEU, chrF and samples of the validation pairs that the loss is of; the text is read once and left in the run folder.

    For a model of one sequence samples alone.
    """
    from dragoman.data.packing import PackedCorpus
    from dragoman.training.continuations import text_score

    training, validation = prepared.config.training, prepared.validation
    if validation is None:
        return None
    if isinstance(validation, PackedCorpus):
        return text_score(run, validation, prepared.target_tokenizer)
    from dragoman.decoding.translate import Translator
    from dragoman.evaluation.evaluate import evaluate_translator
    from dragoman.training.run import read_validation
    from dragoman.training.samples import choose_samples, write_validation_text

    kept = set(validation.line_numbers.tolist())
    pairs = [pair for number, pair in enumerate(read_validation(prepared.config), start=1) if number in kept]
    plain = [(prepared.source_tokenizer.plain(source), prepared.target_tokenizer.plain(target)) for source, target in pairs]
    shown = choose_samples(plain)
    write_validation_text(run, plain)

    def score(bundle: "Bundle") -> dict[str, Any]:
        evaluation = evaluate_translator(
            Translator(bundle), pairs, beam=1, tokenize=training.bleu_tokenize, lowercase=training.bleu_lowercase
        )
        outputs = [translation.text for translation in evaluation.translations]
        samples = [{"source": plain[place][0], "reference": plain[place][1], "output": outputs[place]} for place in shown]
        bleu, chrf = evaluation.bleu, evaluation.chrf
        return {"bleu": bleu.score, "chrf": chrf.score, "signature": bleu.signature, "samples": samples, "outputs": outputs}

    return score
