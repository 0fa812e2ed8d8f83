"""Shared by all tests: one thread, no waiting for the disk, the real corpora where they are, and a command line that must succeed."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dragoman.cli import main

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start: as many run beside each other as there are cores


def unsynced(descriptor: int) -> None:
    """In place of `os.fsync`, of which a training of two steps calls sixty: what a test writes need not outlast a power cut."""
    os.fstat(descriptor)  # raises what the other would for a descriptor that is none


os.fsync = unsynced


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


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
