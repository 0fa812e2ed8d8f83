"""The curves of log.jsonl as TensorBoard's files, in a folder of the run: for those who watch many runs there."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.errors import UsageError

_NOT_CURVES = ("step", "time", "seconds")


class TensorBoard:
    """Writes the numbers of a record as points at its step: ``train/loss``, ``eval/bleu`` and so on.

    Raises UsageError where the tensorboard package is missing.
    """

    def __init__(self, run: Path) -> None:
        check_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        """The points of a "train" or an "eval" record, on the disk when it returns."""
        for name, value in record.items():
            if isinstance(value, int | float) and name not in _NOT_CURVES:
                self._writer.add_scalar(f"{kind}/{name}", value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Nothing is written after this."""
        self._writer.close()


def check_tensorboard() -> None:
    """UsageError where the tensorboard package is missing."""
    try:
        import_module("tensorboard")
    except ImportError:
        raise UsageError("training.tensorboard needs the tensorboard package; pip install 'dragoman[tensorboard]'") from None
