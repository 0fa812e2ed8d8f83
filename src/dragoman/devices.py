"""Where to compute."""

import torch

from dragoman.errors import UsageError


def pick_device(name: str) -> torch.device:
    """The device of a name: auto (a GPU where there is one), cpu, cuda, cuda:N or mps; UsageError when it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        available = device.type in ("cpu", "cuda", "mps")
    except (RuntimeError, AssertionError):
        available = False
    if not available:
        raise UsageError(f"device {name!r} is not available here; give auto, cpu, cuda, cuda:N or mps")
    return device
