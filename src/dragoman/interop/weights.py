"""Weights of other programs' files, read without running anything in them: safetensors, or PyTorch's files by its weights-only loader."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman.errors import DragomanError, unreadable

_WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_NESTED = ("model_state_dict", "state_dict", "model")


def read_folder(folder: Path) -> dict[str, Tensor]:
    """The weights of a Hugging Face folder by name, in one file or several; DragomanError that names the file that is missing or damaged.

    safetensors is read where there is any; ``pytorch_model.bin`` holds a pickle, of which nothing but tensors is taken.
    """
    found = next((folder / name for name in _WHOLE if (folder / name).is_file()), None)
    if found is None:
        raise DragomanError(f"{folder}: no weights: none of {', '.join(_WHOLE)} is there; copy the whole folder of the model")
    if found.suffix != ".json":
        return read_file(found)
    weights: dict[str, Tensor] = {}
    for name in _files_of_index(found):
        more = read_file(folder / name)
        if twice := sorted(weights.keys() & more.keys()):
            raise DragomanError(f"{folder / name}: {', '.join(twice[:3])} is in another file of the model too; use an undamaged copy")
        weights |= more
    return weights


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file or of PyTorch's ``.pt``, ``.pth`` or ``.bin``, on the CPU, by name.

    Of a checkpoint that holds the state dict beside other things only that is taken. Raises DragomanError for a file that cannot be read,
    that needs code to be run, or that has no state dict in it.
    """
    try:
        path.open("rb").close()
        if path.suffix == ".safetensors":
            return load_file(path)
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DragomanError(unreadable(path, error, "cannot read the weights")) from None
    except SafetensorError as error:
        raise DragomanError(f"{path} is not a whole safetensors file ({error}); use an undamaged copy") from None
    except Exception as error:  # torch raises many kinds, pickle's own among them
        raise DragomanError(f"{path}: {_reason(error)}") from None
    state = next((loaded[name] for name in _NESTED if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping)), loaded)
    if not isinstance(state, Mapping) or not state or not all(isinstance(each, Tensor) for each in state.values()):
        raise DragomanError(f"{path}: no state dict in it, which is weights by name; save model.state_dict()")
    if odd := [str(name) for name, each in state.items() if each.layout != torch.strided or each.device.type != "cpu"]:
        raise DragomanError(f"{path}: {', '.join(odd[:3])} has no values, or not all of them (a sparse or meta tensor); save it dense")
    return dict(state)


def _reason(error: Exception) -> str:
    asked = str(error).partition("GLOBAL ")[2].split(" ")[0].rstrip(".")
    if type(error).__name__ == "UnpicklingError" and asked:
        return (
            f"the file asks for code to be run ({asked}), and Dragoman runs none of a model's; save the state dict alone, best as "
            "safetensors, with the program that it comes from"
        )
    first = next(iter(str(error).splitlines()), "")[:200]
    said = "" if type(error).__name__ == "UnpicklingError" else f": {first}"  # which PyTorch says to programmers
    return f"not a whole file of weights ({type(error).__name__}{said}); use an undamaged copy"


def _files_of_index(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("no plain file names")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DragomanError(f"{index}: not a list of weight files ({error}); use an undamaged copy") from None
    if missing := [name for name in names if not (index.parent / name).is_file()]:
        raise DragomanError(f"{index.parent}: {', '.join(missing)} of {index.name} is missing; copy the whole folder of the model")
    return names
