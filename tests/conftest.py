"""Shared by all tests: one torch thread, and the real corpora where they are."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real corpora and weights: DRAGOMAN_DATA, or ../shared/data beside the project."""
    folder = Path(os.environ.get("DRAGOMAN_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set DRAGOMAN_DATA")
    return folder
