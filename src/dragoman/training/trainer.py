"""The training loop (Sections 5.1 to 5.4): batches to loss to gradients to Adam, with evaluations and checkpoints between."""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.bundle import Bundle, save_bundle
from dragoman.config import TrainingConfig
from dragoman.data.batching import Batch, Indices
from dragoman.data.corpus import Corpus
from dragoman.data.packing import PackedCorpus
from dragoman.devices import peak_memory
from dragoman.errors import DragomanError
from dragoman.ranks import answered
from dragoman.training.aligning import objective, watched, with_alignment
from dragoman.training.checkpoints import mark_newest, remove_older
from dragoman.training.distributed import ALONE, Ranks, seed_rank
from dragoman.training.log import RunLog
from dragoman.training.loss import GuidedLoss, Loss, model_loss
from dragoman.training.moving_average import MovingAverage
from dragoman.training.optimizer import build_optimizer
from dragoman.training.outlook import Outlook, when_diverged
from dragoman.training.precision import DTYPES, SMALLEST_SCALE, compute_dtype
from dragoman.training.report import write_report
from dragoman.training.samples import write_outputs
from dragoman.training.schedule import rate_of
from dragoman.training.sharding import ShardedModel, whole_moments, whole_tensor
from dragoman.training.state import Plan, Progress, load_state, random_states, save_progress, save_state
from dragoman.training.totals import Totals
from dragoman.training.validation import judge, measure_of, validation_figures
from dragoman.training.windows import Window, ahead, pinned, windows

logger = logging.getLogger("dragoman")

Score = Callable[[Bundle], Mapping[str, Any]]
"""Translates the validation text with a model and returns facts for the log, among them "bleu" and "samples".

Under "outputs" it may return every translation, for the run's samples/ and not for the log.
"""


class _Abandoned(BaseException):
    """Ends an evaluation that nobody waits for any more; nothing on the way may take it for a failure."""


class Trainer:
    """Trains the model of a bundle on a corpus and leaves checkpoints in the run folder.

    ``validation`` and ``score`` are what an evaluation measures, if given. ``facts`` are fingerprints that a resumed run must share.
    `interrupt` makes the loop finish its step, save and return. Each of many ``ranks`` has a trainer with the same bundle and corpus; the
    first writes, evaluates (``evaluating``), and all stop at the same step.
    """

    def __init__(
        self,
        bundle: Bundle,
        corpus: Corpus,
        *,
        run: Path,
        log: RunLog,
        device: torch.device,
        validation: Corpus | None = None,
        score: Score | None = None,
        facts: Mapping[str, str] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.bundle, self.corpus, self.validation, self.score, self.ranks = bundle, corpus, validation, score, ranks
        self.settings: TrainingConfig = bundle.config.training
        self.run, self.log, self.device, self.facts = run, log, device, {**(facts or {}), "optimizer": self.settings.optimizer}
        self.shards = ShardedModel(bundle, self._loss, device=device) if self.settings.shard else None
        self.model = bundle.model if self.shards else bundle.model.to(device)
        self.average = MovingAverage(self.model, decay=self.settings.ema) if self.settings.ema else None
        self.optimizer = build_optimizer(self.model, self.settings)
        self.rate = rate_of(self.settings, d_model=bundle.config.model.d_model)
        self.dtype = self._compute_dtype()
        self.progress = Progress(bfloat16=self.dtype == torch.bfloat16)
        self.totals = Totals()
        self.interrupted = self.evaluating = False
        if ranks.rank:
            seed_rank(self.settings.seed, rank=ranks.rank, step=0)

    @property
    def precision(self) -> str:
        """The type that the matrix products are in, by its name in the settings."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    def train(self) -> str:
        """Updates until a limit is reached; returns which: max_steps, max_minutes, patience or interrupted.

        Raises DragomanError when the loss is no longer a finite number, or a checkpoint cannot be written.
        """
        self.model.train()
        self.progress.go_on_by(Plan.of(self.settings))
        if not self.shards:
            self.ranks.copy_weights(self.model)
        started = time.monotonic() - self.progress.seconds
        stop = self._limit()
        if self.progress.owed:
            stop = self._judged(stop)
        self.outlook = Outlook(self.settings, self.progress)
        if stop:
            return stop
        with closing(self._windows()) as found:
            for window in found:
                began = time.monotonic()
                norm = self._update(window)
                now = time.monotonic()
                self.totals.seconds += now - began
                self.progress.seconds = now - started
                if norm is None:
                    continue  # no step was made, so nothing that is due at this step is due again
                stop = self._limit()
                due = self.progress.step % self.settings.evaluate_every == 0
                last = stop not in ("", "interrupted")  # else a resumed run would have records that an uninterrupted one has not
                if last or self.progress.step % self.settings.log_every == 0:
                    self._report(norm)
                if due or stop:
                    self.progress.owed = self.validation is not None and (due or last)
                    self._save()
                    stop = self._judged(stop)
                if stop:
                    return stop
        raise AssertionError("the epochs never end")

    def interrupt(self) -> None:
        """For a signal's handler: the loop finishes its step, saves and returns.

        An evaluation ends at once, for the checkpoint is written already; a run that is resumed there makes it first.
        """
        self.interrupted = True
        if self.evaluating:
            self.evaluating = False
            raise _Abandoned

    def rehearse(self, *, updates: int, seconds: float) -> list[Totals]:
        """Some updates for the sake of their speed, of which nothing is written: one to warm up, and the sums of each of those after it.

        These are at most ``updates``, and no more begin after ``seconds``, but there is at least one.
        """
        self.model.train()
        made: list[Totals] = []
        with closing(self._windows()) as found:
            for window in found:
                self.totals, began = Totals(), time.monotonic()
                if self._update(window) is None or self.progress.step == 1:
                    continue
                self.totals.seconds = time.monotonic() - began
                made.append(self.totals)
                if len(made) >= updates or sum(each.seconds for each in made) > seconds:
                    break
        return made

    def resume(self, checkpoint: Path) -> None:
        """Goes back to the place of a checkpoint of this run; its weights are already in the bundle.

        A best of another measure than the settings' is forgotten. Raises DragomanError when the data, the tokenizer or the optimiser is
        not what it was trained with, naming which.
        """
        rank, seed = self.ranks.rank, self.settings.seed
        progress, facts = load_state(checkpoint, self.optimizer, self.model, device=self.device, rank=rank, seed=seed)
        changed = [name for name, value in self.facts.items() if facts.get(name) != value]
        if changed:
            raise DragomanError(f"{self.run}: cannot resume, for the {' and the '.join(changed)} changed since; start a new run")
        if progress.measure not in ("", self._measure()):
            logger.info("the best so far was by %s and is forgotten, for now it is by %s", progress.measure, self._measure())
            progress.best, progress.best_step, progress.evaluations_since_best, progress.measure = None, 0, 0, ""
        before = torch.bfloat16 if progress.bfloat16 else torch.float32
        self.dtype = self._compute_dtype(before)
        progress.bfloat16 = self.dtype == torch.bfloat16
        self.progress = progress
        if self.ranks.first:
            self.totals = Totals(*progress.unreported)  # type: ignore[arg-type]  # whole numbers stay whole in JSON
            self._settle(checkpoint)  # a run may be killed between a checkpoint and what follows it

    def _windows(self) -> Generator[Window]:
        """The updates from the place in the data on; where the device is not the CPU, this makes them while that computes."""
        found = windows(self.corpus, self.bundle.config, self.bundle.target_tokenizer, self.ranks, after=self.progress)
        if self.device.type == "cpu":  # a thread would take from the step what it gives
            return found
        return ahead(pinned(found, self.device) if self.device.type == "cuda" else found)

    def _update(self, window: Window) -> float | None:
        """One step on the `objective`, the loss per target token of all the window's batches; returns the gradient's norm before clipping.

        The batches are shared out among the ranks, and the loss of each divides by the tokens of all, so that the gradients only add up.
        None is a gradient too large for float16: the update is left out, the next one's loss is scaled by half, and no step is counted.
        """
        self.progress.reach(window.epoch, window.position)
        step, broken, measure = self.progress.step + 1, 0, self.shards.measure if self.shards else self._loss
        factor = self.progress.scale.scale if self.dtype == torch.float16 else 1.0
        if self.shards:
            factor *= self.ranks.size  # by which FSDP divides the sum of the gradients
        share = partial(objective, tokens=window.tokens, aligned=window.aligned, weight=self.settings.alignment_weight)
        for place, batch, counts in window.parts:
            batch = batch.to(self.device)
            with answered():  # of the others, who gather a sharded model with this one
                loss = measure(batch, epsilon=self.settings.label_smoothing)
                torch.autograd.backward(share(loss, factor=factor if counts else 0.0))
            if counts:
                self.totals.add(loss, int(batch.target_mask.sum()))
            if not (broken or math.isfinite(self.totals.smoothed)):
                broken = place + 1
        if broken := self.ranks.largest(broken):  # asked of all, or those whose loss is fine would wait for ever
            raise DragomanError(self._not_finite("loss", step, window.batches[broken - 1 : broken]))
        if not self.shards:
            self.ranks.sum_gradients(self.model.parameters())
        norm = self._clip()
        if self.dtype == torch.float16 and self._too_large_for_float16(norm):
            return None
        if not math.isfinite(norm):
            raise DragomanError(self._not_finite("gradient", step, window.batches))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average:
            self.average.update(step)
        self.progress.step = step
        self.progress.target_tokens += window.tokens
        return norm

    def _too_large_for_float16(self, norm: float) -> bool:
        """Whether this update is left out; the scale of the loss follows. With the smallest scale it is no longer float16's fault."""
        scale = self.progress.scale
        if math.isfinite(norm) or scale.scale < SMALLEST_SCALE:
            scale.take(finite=True)
            return False
        scale.take(finite=False)
        self.optimizer.zero_grad()
        if self.ranks.first:
            self.log.event("skip", step=self.progress.step, scale=scale.scale)
        return True

    def _loss(self, batch: Batch, *, epsilon: float) -> Loss | GuidedLoss:
        with watched(self.model, self.bundle.config.model, batch.links) as seen:
            loss = model_loss(self.model, batch, epsilon=epsilon, rdrop=self.settings.rdrop, dtype=self.dtype)
            return with_alignment(loss, seen, batch.links)

    def _clip(self) -> float:
        """Takes the scale of the loss from the gradient and scales it down to clip_norm, where that is set; returns its norm before."""
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.dtype == torch.float16:
            torch._foreach_mul_(gradients, 1 / self.progress.scale.scale)
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.settings.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.clip_norm, norm)
        return whole_tensor(norm).item()

    def _limit(self) -> str:
        """Why to stop, the same on all ranks though their clocks differ and a signal may reach one of them only; empty to go on."""
        if self.progress.step >= self.settings.max_steps:
            return "max_steps"
        late = self.settings.max_minutes and self.progress.seconds >= 60 * self.settings.max_minutes
        return ("", "interrupted", "max_minutes")[self.ranks.largest(2 if late else int(self.interrupted))]

    def _impatient(self) -> str:
        """As the first rank judges, for the others see no evaluation."""
        patience = self.settings.patience
        return "patience" if patience and self.ranks.first_says(int(self.progress.evaluations_since_best >= patience)) else ""

    def _report(self, norm: float) -> None:
        progress = self.progress
        totals, self.totals = self.totals.over(self.ranks), Totals()
        if not self.ranks.first:
            return
        rate = totals.tokens / totals.seconds
        record = {"step": progress.step, "epoch": progress.epoch, **totals.means(), "lr": self.rate(progress.step)}
        record |= {"grad_norm": norm, "tok_s": rate, "seconds": progress.seconds, **peak_memory(self.device)}
        self.log.train(record, seconds_left=self.outlook.seconds_left(progress))
        if sentences := self.outlook.foretold(progress):
            self.log.say(*sentences)

    def _judged(self, stop: str) -> str:
        """Makes the evaluation that the newest checkpoint owes, if it does, and notes there what came of it.

        Returns why to stop, which is ``stop`` or found here. An interruption leaves the evaluation owed. Asked of all ranks.
        """
        if self.progress.owed:
            began = time.monotonic()
            if stop == "interrupted" or self.ranks.first_says(int(not self._evaluate())):
                return "interrupted"
            self.progress.owed = False
            self.progress.seconds += time.monotonic() - began
            if self.ranks.first:
                save_progress(self._newest, self.progress, self.facts)
                if self.progress.best_step == self.progress.step:
                    self._settle(self._newest)
        if self.ranks.first:
            write_report(self.run)
        return stop or self._impatient()

    def _evaluate(self) -> bool:
        """Validation loss and scores; random states and the training mode are as before when it returns. False if it was interrupted."""
        began = time.monotonic()
        with self._as_saved() as (bundle, _):
            if not self.ranks.first:
                return True
            try:
                record = self._evaluation(bundle)
            except _Abandoned:
                return False
            finally:
                self.model.train()
        if outputs := record.pop("outputs", None):
            write_outputs(self.run, self.progress.step, outputs)
        record["seconds"] = time.monotonic() - began
        self.log.evaluation(record, best=judge(self.progress, record, best_by=self.settings.best_by, measure=self._measure()))
        return True

    def _evaluation(self, bundle: Bundle) -> dict[str, Any]:
        """What there is to tell of an evaluation. Only here, where nothing is written, does `interrupt` raise."""
        assert self.validation is not None
        loss, tokenizer, step = partial(self._loss, epsilon=self.settings.label_smoothing), bundle.target_tokenizer, self.progress.step
        try:
            self.evaluating = True
            if self.interrupted:
                raise _Abandoned
            self.model.eval()
            with torch.inference_mode():
                figures = validation_figures(self.validation, loss, bundle.config, tokenizer, device=self.device, step=step)
                scores = dict(self.score(bundle)) if self.score else {}
        finally:
            self.evaluating = False
        return {"step": step, **figures, **scores}

    def _measure(self) -> str:
        return measure_of(self.bundle.config, scored=self.score is not None)

    @property
    def _newest(self) -> Path:
        return self.run / "checkpoints" / f"step-{self.progress.step:06}"

    def _save(self) -> None:
        """A checkpoint of this step, the marks last and best, and the removal of what is older than is kept."""
        _, *others = self.ranks.gather(random_states(self.device))
        self.progress.unreported = astuple(self.totals.over(self.ranks))
        moments = whole_moments(self.optimizer, keep=self.ranks.first)
        folder = self._newest
        info = {"step": self.progress.step, "target_tokens": self.progress.target_tokens}
        with self._as_saved() as (bundle, trained):
            if not self.ranks.first:
                return
            save_bundle(
                replace(bundle, info=info),
                folder,
                also=lambda beside: save_state(beside, self.progress, moments, self.facts, trained, device=self.device, others=others),
            )
        self._settle(folder)

    def _settle(self, newest: Path) -> None:
        mark_newest(self.run, newest, best=self.progress.best_step == self.progress.step)
        remove_older(self.run, newest, keep=self.settings.keep)

    @contextmanager
    def _as_saved(self) -> Iterator[tuple[Bundle, Mapping[str, Tensor]]]:
        """The bundle to evaluate and save: inside, the model has the average of its weights, or is gathered from its shards.

        Gives the weights in training, too, where they are others. Asked of all ranks, but the model is for the first.
        """
        if self.shards:
            with self.shards.gathered() as whole:
                sharded, self.model = self.model, whole.model
                try:
                    yield whole, {}
                finally:
                    self.model = sharded
        elif self.average:
            with self.average.in_place() as trained:
                yield self.bundle, trained
        else:
            yield self.bundle, {}

    def _compute_dtype(self, before: torch.dtype | None = None) -> torch.dtype:
        """As the first rank chooses, for it may be measured."""
        known = [*DTYPES.values()]
        return known[self.ranks.first_says(known.index(compute_dtype(self.bundle.config, self.device, before=before)))]

    def _not_finite(self, what: str, step: int, batches: list[Indices]) -> str:
        corpus = self.corpus.of_epoch(self.progress.epoch, seed=self.settings.seed, most=self.settings.batch_budget)
        lines = sorted({int(line) for indices in batches for line in corpus.line_numbers[indices]})
        shown = ", ".join(map(str, lines[:8])) + (", …" if len(lines) > 8 else "")
        return (
            f"step {step}: the {what} is not a finite number {'near' if isinstance(corpus, PackedCorpus) else 'on'} lines {shown} of the "
            f"training text; {when_diverged(self.settings, self.run)}"
        )


def seed_everything(seed: int) -> None:
    """Fixes PyTorch's random numbers: fresh weights and dropout. The order of the data is a function of the seed by itself."""
    torch.manual_seed(seed)
