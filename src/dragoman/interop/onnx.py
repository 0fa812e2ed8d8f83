"""Models as ONNX graphs, checked in onnxruntime: the encoder, and the decoder's step of one token with its cache.

Shapes:  B batch   S source positions   P target positions seen   H heads of keys and values   K = d_k   V vocabulary
"""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dragoman.bundle import Bundle, save_settings
from dragoman.data.batching import pad_rows
from dragoman.errors import DragomanError
from dragoman.files import new_folder
from dragoman.interop.ctranslate2_check import sample_sources
from dragoman.interop.verify import Verification
from dragoman.model.cache import Cache, KeysValues, LayerCache, SelfCache
from dragoman.model.transformer import LanguageModel, Transformer

OPSET = 17
"""The version of ONNX's operators that the graphs use."""

_STEPS = 16  # of greedy search in the check


@dataclass(frozen=True)
class Graph:
    """A graph to be written: the module, examples of its inputs by name, and the names of its outputs; sizes that may vary have names."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]

    def axes(self) -> dict[str, dict[int, str]]:
        """The dimensions of inputs and outputs that may have any size."""
        return {name: _axes(name) for name in (*self.inputs, *self.outputs)}


def _axes(name: str) -> dict[int, str]:
    if name in ("source", "mask"):
        return {0: "batch", 1: "source"}
    if name in ("token", "logits"):
        return {0: "batch"}
    length = "source" if name.startswith("memory") else "seen" if name.startswith("past") else "now"
    return {0: "batch", 2: length}


def export_model(bundle: Bundle, out: Path) -> tuple[Verification, list[str]]:
    """Writes a model as a new folder of ONNX graphs, compares them with it in onnxruntime, and leaves nothing when they differ.

    ``encoder.onnx`` gives, of source ids (B, S) and their mask, each decoder layer's keys and values of the memory (B, H, S, K);
    ``decoder.onnx`` gives, of a token (B, 1), the mask, these, and the keys and values of P tokens before it, the logits (B, V) of the
    next token and the keys and values of P + 1. A decoder-only model has only the latter, without mask and memory. Raises DragomanError
    where onnx or onnxruntime is not installed, for a model that cannot be written, and when the two differ.
    """
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise DragomanError(f"{package} is not installed; pip install 'dragoman[onnx]'")
    graphs = _graphs(bundle)
    with new_folder(Path(out)) as folder:
        for graph in graphs:
            _write(graph, folder / f"{graph.name}.onnx", bundle)
        target = bundle.target_tokenizer
        facts = {
            "start": target.bos, "end": target.eos, "padding": bundle.source_tokenizer.pad, "layers": bundle.config.model.decoder_layers,
            "never": sorted({target.pad, target.bos, *target.tags.values(), *range(len(target), bundle.config.model.target_vocabulary)}),
            "source_end": bundle.source_tokenizer.source_end,
        }  # fmt: skip
        (folder / "ids.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        sides = {"": target} if bundle.source_tokenizer is target else {"source_": bundle.source_tokenizer, "target_": target}
        for name, tokenizer in sides.items():
            tokenizer.backend.save(str(folder / f"{name}tokenizer.json"), pretty=False)
        (folder / "dragoman").mkdir()
        save_settings(folder / "dragoman", bundle)
        verified = compare_with_folder(bundle, folder)
        verified.require(str(out))
    return verified, []


# The graphs


def _graphs(bundle: Bundle) -> list[Graph]:
    model, config = bundle.model, bundle.config.model
    layers, heads = range(config.decoder_layers), config.key_value_heads
    rows, seen, words = 2, 3, 5

    def keys_values(name: str, length: int) -> dict[str, Tensor]:
        widths = {"key": config.key_width, "value": config.value_width}
        return {f"{name}_{kind}_{n}": torch.zeros(rows, heads, length, width) for n in layers for kind, width in widths.items()}

    token, outputs = torch.full((rows, 1), bundle.target_tokenizer.bos), ["logits", *keys_values("now", 1)]
    if isinstance(model, LanguageModel):
        return [Graph("decoder", _NextToken(model), {"token": token, **keys_values("past", seen)}, outputs)]
    if not (isinstance(model, Transformer) and config.architecture == "encoder-decoder"):
        raise DragomanError(f"a model that is {config.architecture} has no ONNX form here; encoder-decoder and decoder-only ones have")
    source, mask = torch.full((rows, words), bundle.source_tokenizer.eos), torch.ones(rows, words, dtype=torch.bool)
    memory = keys_values("memory", words)
    encoder = Graph("encoder", _Encoder(model), {"source": source, "mask": mask}, list(memory))
    decoder = Graph("decoder", _Step(model), {"token": token, "mask": mask, **memory, **keys_values("past", seen)}, outputs)
    return [encoder, decoder]


class _Encoder(nn.Module):
    """Source (B, S) and mask (B, S) to each decoder layer's keys and values of the memory."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Keys and values by turns."""
        cache = self.model.start(self.model.encode(source, mask), mask)
        return tuple(each for layer in cache.layers for each in layer.memory)


class _Step(nn.Module):
    """A token (B, 1), the mask (B, S), keys and values of the memory and of the tokens before, to logits (B, V) and those of all tokens."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, mask: Tensor, *keys_values: Tensor) -> tuple[Tensor, ...]:
        """Keys and values by turns, the memory's first."""
        pairs = [KeysValues(*pair) for pair in zip(keys_values[::2], keys_values[1::2], strict=True)]
        half = len(pairs) // 2
        cache = Cache(tuple(map(LayerCache, pairs[:half], pairs[half:])), mask[:, None, None])
        hidden, cache = self.model.step(token, cache)
        return self.model.project(hidden[:, -1]), *(each for layer in cache.layers if layer.own for each in layer.own)


class _NextToken(nn.Module):
    """A token (B, 1), and keys and values of the tokens before, to logits (B, V) and those of all tokens."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, *keys_values: Tensor) -> tuple[Tensor, ...]:
        """Keys and values by turns."""
        pairs = tuple(KeysValues(*pair) for pair in zip(keys_values[::2], keys_values[1::2], strict=True))
        hidden, cache = self.model.step(token, SelfCache(pairs))
        return self.model.project(hidden[:, -1]), *(each for layer in cache.layers for each in layer)


def _write(graph: Graph, path: Path, bundle: Bundle) -> None:
    device = bundle.model.output.weight.device
    inputs = tuple(value.to(device) for value in graph.inputs.values())
    custom: Any = torch.onnx  # which does not list these two among its exports
    custom.register_custom_op_symbolic("aten::rms_norm", _rms_norm, OPSET)
    try:
        with _quiet(), torch.inference_mode():
            # By tracing: torch's newer way takes many times as long, and both give the same numbers.
            torch.onnx.export(
                graph.module.eval(), inputs, str(path), dynamo=False, opset_version=OPSET, input_names=[*graph.inputs],
                output_names=graph.outputs, dynamic_axes=graph.axes(), do_constant_folding=False,
            )  # fmt: skip
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DragomanError(f"this model cannot be written as ONNX ({reason}); export it another way") from error
    finally:
        custom.unregister_custom_op_symbolic("aten::rms_norm", OPSET)


def _rms_norm(graph: Any, x: Any, shape: Any, weight: Any, epsilon: Any) -> Any:
    """x / √(mean(x²) + ε) · weight in ONNX's operators, which have no such norm in this version."""
    two = graph.op("Constant", value_t=torch.tensor(2.0))
    mean = graph.op("ReduceMean", graph.op("Pow", x, two), axes_i=[-1], keepdims_i=1)
    root = graph.op("Sqrt", graph.op("Add", mean, epsilon))
    return graph.op("Mul", graph.op("Div", x, root), weight)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tracer's warnings: what it warns of, sizes that it takes for fixed, the check finds out by other sizes."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# The check


class OnnxModel:
    """A folder of graphs in onnxruntime."""

    def __init__(self, folder: Path) -> None:
        """Raises DragomanError when onnxruntime cannot read the graphs."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.facts: dict[str, Any] = json.loads((folder / "ids.json").read_bytes())
        try:
            self._sessions = {
                path.stem: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                for path in folder.glob("*.onnx")
            }
        except Exception as error:  # onnxruntime has types of its own for each of its many faults
            raise DragomanError(f"{folder}: onnxruntime cannot read the graphs: {' '.join(str(error).split())[:300]}") from None

    def start(self, source: Any = None, mask: Any = None) -> dict[str, Any]:
        """The state before the first token of source ids (B, S) with a mask (B, S); of one sequence without a source."""
        state: dict[str, Any] = {}
        rows = 1
        if source is not None:
            names = [each.name for each in self._sessions["encoder"].get_outputs()]
            state = {"mask": mask, **dict(zip(names, self._sessions["encoder"].run(None, {"source": source, "mask": mask}), strict=True))}
            rows = len(source)
        for each in self._sessions["decoder"].get_inputs():
            if each.name.startswith("past"):
                state[each.name] = np.zeros((rows, each.shape[1], 0, each.shape[3]), np.float32)
        return state

    def step(self, tokens: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The logits (B, V) after tokens (B,), and the state with them."""
        session = self._sessions["decoder"]
        wanted = {each.name for each in session.get_inputs()} - {"token"}
        logits, *seen = session.run(None, {"token": tokens[:, None], **{name: state[name] for name in wanted}})
        names = [each.name.replace("now", "past") for each in session.get_outputs()[1:]]
        return logits, {**state, **dict(zip(names, seen, strict=True))}


def greedy(model: OnnxModel, sources: Sequence[Sequence[int]], *, most: int) -> list[list[int]]:
    """The greedy output of each source, given in ids with what stands around them: its ids, the end token last, cut after ``most``."""
    facts = model.facts
    rows, mask = pad_rows([*map(list, sources)], pad=facts["padding"], device=torch.device("cpu"))
    state = model.start(rows.numpy(), mask.numpy())
    tokens = np.full(len(sources), facts["start"])
    outputs: list[list[int]] = [[] for _ in sources]
    for _ in range(most):
        logits, state = model.step(tokens, state)
        logits[:, facts["never"]] = -np.inf
        tokens = logits.argmax(1)
        for output, token in zip(outputs, tokens.tolist(), strict=True):
            if output[-1:] != [facts["end"]]:
                output.append(token)
        if all(output[-1:] == [facts["end"]] for output in outputs):
            break
    return outputs


def compare_with_folder(bundle: Bundle, folder: Path) -> Verification:
    """Graphs against the model they were made of: greedy steps of sources of different lengths, all logits side by side."""
    import onnxruntime

    model = OnnxModel(folder)
    sources = sample_sources(bundle)
    batches = [[source] for source in sources] if bundle.config.model.single else [sources]
    difference, largest, same, count = 0.0, 0.0, 0, 0
    for batch in batches:
        theirs, ours = _side_by_side(bundle, model, batch)  # (steps, B, V)
        difference, largest = max(difference, float(np.abs(theirs - ours).max())), max(largest, float(np.abs(theirs).max()))
        same += int((theirs.argmax(2) == ours.argmax(2)).all(0).sum())
        count += len(batch)
    return Verification(f"onnxruntime {onnxruntime.__version__}", difference, largest, count, same)


@torch.inference_mode()
def _side_by_side(bundle: Bundle, model: OnnxModel, sources: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """The logits (steps, B, V) of greedy search in onnxruntime, and ours after the same tokens."""
    device, start = bundle.model.output.weight.device, bundle.target_tokenizer.bos
    steps = min(_STEPS, bundle.config.model.max_positions - 1)
    if bundle.config.model.single:
        tokens = np.array([[start, *sources[0]]])
        state, found = model.start(), []
        for place in range(tokens.shape[1]):
            logits, state = model.step(tokens[:, place], state)
            found.append(logits)
        ours = bundle.language_model.forward(torch.from_numpy(tokens).to(device))  # (1, T, V)
        return np.stack(found), ours.transpose(0, 1).float().cpu().numpy()
    framed = [bundle.source_tokenizer.as_source(source) for source in sources]
    rows, mask = pad_rows(framed, pad=bundle.source_tokenizer.pad, device=torch.device("cpu"))
    state, found, chosen = model.start(rows.numpy(), mask.numpy()), [], [np.full(len(sources), start)]
    for _ in range(steps):
        logits, state = model.step(chosen[-1], state)
        found.append(logits)
        chosen.append(logits.argmax(1))
    target = torch.from_numpy(np.stack(chosen[:-1], 1)).to(device)  # (B, T)
    ours = bundle.encoder_decoder.forward(rows.to(device), target, mask.to(device))  # (B, T, V)
    return np.stack(found), ours.transpose(0, 1).float().cpu().numpy()
