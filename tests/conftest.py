"""Shared by all tests: one torch thread, the real corpora where they are, and a command line that must succeed."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman.cli import main

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real corpora and weights: DRAGOMAN_DATA, or ../shared/data beside the project."""
    folder = Path(os.environ.get("DRAGOMAN_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set DRAGOMAN_DATA")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line that must succeed, and returns what it printed."""

    def run(*arguments: str | Path) -> str:
        assert main([str(argument) for argument in arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run
