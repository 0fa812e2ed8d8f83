"""What a training counts between two records of its log (Section 5)."""

import math
from dataclasses import dataclass

from dragoman.training.distributed import Ranks
from dragoman.training.loss import GuidedLoss, Loss


@dataclass
class Totals:
    """Sums over target tokens of the updates since the last record, and the seconds they took."""

    smoothed: float = 0.0
    negative_log_likelihood: float = 0.0
    correct: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    alignment: float = 0.0
    aligned: int = 0

    def add(self, loss: Loss | GuidedLoss, tokens: int) -> None:
        """The sums of one batch more."""
        self.smoothed += loss.smoothed.item()
        self.negative_log_likelihood += loss.negative_log_likelihood.item()
        self.correct += loss.correct.item()
        self.tokens += tokens
        if isinstance(loss, GuidedLoss):
            self.alignment += loss.alignment.item()
            self.aligned += int(loss.aligned)

    def over(self, ranks: Ranks) -> "Totals":
        """The sums of all ranks, which take the same time."""
        smoothed, negative_log_likelihood, correct, tokens, alignment, aligned = ranks.sum(
            self.smoothed, self.negative_log_likelihood, self.correct, self.tokens, self.alignment, self.aligned
        )
        return Totals(smoothed, negative_log_likelihood, correct, int(tokens), self.seconds, alignment, int(aligned))

    def means(self) -> dict[str, float]:
        """Per token: loss (smoothed), nll (nats), ppl = exp(nll), acc; and alignment (nats) per aligned token, where there are some."""
        nll = self.negative_log_likelihood / self.tokens
        means = {"loss": self.smoothed / self.tokens, "nll": nll, "ppl": math.exp(min(nll, 700)), "acc": self.correct / self.tokens}
        return means | ({"alignment": self.alignment / self.aligned} if self.aligned else {})
