"""How many sentences a second a decoder translates: Dragoman, transformers' generate and CTranslate2, with the same weights.

    python benchmarks/decoding_speed.py --model RUN --output benchmarks/decoding_speed.tiny.json
    python benchmarks/decoding_speed.py --preset base --output benchmarks/decoding_speed.base.json

The sentences are Multi30k's test_2016_flickr in the published byte pairs, from DRAGOMAN_DATA (or ../shared/data); RUN is a model of them,
as `python benchmarks/multi30k.py bpe --runs FOLDER` leaves it. With --preset a model of fresh weights takes its place, and every output has
16 tokens; else none has more than 80, and nothing else ends a loop. Beam 5 and greedy (beam 1), in batches of the best size of a few and
one sentence at a time; the contenders take turns, each in a process of its own, and the figure is the median of the rounds. Beside it stand
the tokens of the outputs, and the share of them that are Dragoman's in float32.
transformers computes a post-norm model as MarianMTModel and a pre-norm one as PegasusForConditionalGeneration, whose layers are those.
With --processor-time and --threads 1 the clock is the processor time that each process has used: on a busy machine that still says how the
contenders compare, though not how many sentences a second they do. The first sentences of a turn do not count.
It needs `pip install transformers ctranslate2`; what is missing is left out, and that is said.
"""

import argparse
import contextlib
import gzip
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from dragoman.bundle import Bundle, load_bundle
from dragoman.data.batching import pad_rows
from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.devices import keep_freed_memory
from dragoman.model.build import build_model
from dragoman.model.embedding import sinusoids
from dragoman.presets import resolve_config

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k" / "bpe10k" / "en-de"
FORCED = 16  # tokens of every output of a model that has learnt nothing
LONGEST = 80  # of one that has learnt: whoever lets what goes round in a loop go on for longer would have more to do than others
WARM = 256  # sentences, or two alone, of a turn that do not count: systems take the memory of a program that waits for its turn
MODES = ("beam 5", "greedy", "beam 5, alone", "greedy, alone")
BATCHES = (32, 64, 128, 256, 512)  # sentences; each contender has its best
Lines = list[list[str]]
Decode = Callable[[Lines, int, int], Lines]
"""The outputs for sentences in pieces, with this beam and so many sentences at a time."""


def main() -> None:
    """Measures, prints a table and writes it."""
    options = read_options()
    torch.set_num_threads(options.threads)
    lines = [line.split() for line in lines_of("test.2016.en")]
    if options.only:
        try:
            decode = CONTENDERS[options.only](the_model(options, lines), options)
        except ImportError as error:
            print(error.name)
        else:
            serve(decode, lines, options)
        return
    contenders = {name: process for name in options.contenders.split(",") if (process := started(name))}
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {name: {mode: [] for mode in MODES} for name in contenders}
    for number in range(options.rounds):
        for mode in MODES:
            for name, process in contenders.items():
                print(mode, file=process.stdin, flush=True)
                answers[name][mode].append(json.loads(process.stdout.readline()))  # type: ignore[union-attr]
                print(f"round {number + 1}  {name}  {mode}  {answers[name][mode][-1]['rate']:,.1f} a second", file=sys.stderr, flush=True)
    for process in contenders.values():
        process.communicate()
    report(options, answers)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="a run folder of the published byte pairs")
    which.add_argument("--preset", help="the sizes of a model with fresh weights")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--sentences", type=int, default=500, help="of a round in batches")
    parser.add_argument("--beam-sentences", type=int, help="the same of beam 5, where it is another number; a twentieth of them alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="the clock is each process's own; wants --threads 1")
    parser.add_argument("--output", type=Path, help="where the result is written, as JSON")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.beam_sentences = options.beam_sentences or options.sentences
    if options.processor_time and options.threads != 1:
        parser.error("--processor-time adds up all threads' time; give --threads 1 with it")
    return options


def lines_of(name: str) -> list[str]:
    """The lines of a file of the published byte pairs."""
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode("utf-8").splitlines()


def started(name: str) -> "subprocess.Popen[str] | None":
    """A process that is ready for its turns as this contender; None where what it needs is not installed."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answer = process.stdout.readline()  # type: ignore[union-attr]
    if not answer:
        raise SystemExit(f"{name} ended with status {process.wait()}")
    if not answer.startswith("ready"):
        print(f"{name}: left out, for {answer.strip()} is not installed", file=sys.stderr)
        return None
    return process


def serve(decode: Decode, lines: Lines, options: argparse.Namespace) -> None:
    """Takes the turns that standard input asks for, a mode a line, and says how fast it was and what came out."""
    clock = time.process_time if options.processor_time else time.perf_counter
    sizes: dict[int, int] = {}
    with contextlib.redirect_stdout(sys.stderr):
        for beam in (5, 1):
            decode(lines[:64], beam, 64)  # warm
            decode(lines[:32], beam, 1)  # and what is made ready once sentences come alone
            together = lines[: options.beam_sentences if beam > 1 else options.sentences]
            sizes[beam] = best_size(partial(decode, together, beam), clock)
        answers = sys.__stdout__
        print("ready", file=answers, flush=True)
        for asked in sys.stdin:
            beam = 5 if "beam 5" in asked else 1
            some, size = lines[: options.beam_sentences if beam > 1 else options.sentences], sizes[beam]
            if "alone" in asked:
                some, size = lines[: options.beam_sentences // 20], 1
            decode(some[: WARM if size > 1 else 2], beam, size)
            began = clock()
            outputs = decode(some, beam, size)
            answer = {"rate": len(some) / (clock() - began), "batch": size, "outputs": outputs}
            print(json.dumps(answer), file=answers, flush=True)


def best_size(call: Callable[[int], object], clock: Callable[[], float]) -> int:
    """The batch size with which a call takes the least time by this clock: each is timed once, the two best twice."""
    seconds: dict[int, float] = {}

    def measure(size: int) -> None:
        began = clock()
        call(size)
        seconds[size] = min(clock() - began, seconds.get(size, math.inf))

    for size in BATCHES:
        measure(size)
    for size in sorted(seconds, key=seconds.__getitem__)[:2]:
        measure(size)
    return min(seconds, key=seconds.__getitem__)


def the_model(options: argparse.Namespace, lines: Lines) -> Bundle:
    """The trained model, or one of fresh weights with 9,712 entries, the sentences' pieces among them."""
    if options.model:
        return load_bundle(options.model)
    tokenizer = Tokenizer.train(lines_of("train.en") + lines_of("train.de"), kind="whitespace", vocabulary_size=0, joiner="@@")
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer), "pad": tokenizer.pad}
    data = {"source": "en", "target": "de", "tokenizer": "whitespace", "joiner": "@@", "vocabulary_size": 0}
    config = resolve_config(options.preset, flags={"data": data}).with_values(model=sizes)
    torch.manual_seed(1)
    return Bundle(config, build_model(config.model).eval(), tokenizer, tokenizer)


# The contenders


def dragoman(precision: Any) -> Callable[[Bundle, argparse.Namespace], Decode]:
    """`Translator.translate`."""

    def build(bundle: Bundle, options: argparse.Namespace) -> Decode:
        keep_freed_memory()  # as `dragoman translate` does
        translator = Translator(bundle, precision=precision)
        longest_output, least = (LONGEST, None) if options.model else (FORCED, FORCED)
        search: dict[str, Any] = {"max_length": longest_output, "options": SearchOptions(min_length=least, repetition_guard=0)}
        end = bundle.target_tokenizer.token(bundle.target_tokenizer.eos)

        def decode(lines: Lines, beam: int, size: int) -> Lines:
            longest = max(len(line) for line in lines) + 1
            outputs: Lines = []
            groups = [lines] if size > 1 else [[line] for line in lines]
            for group in groups:
                texts = [" ".join(line) for line in group]
                found = translator.translate(texts, beam=beam, batch_tokens=size * beam * min(longest, 20), **search)
                outputs += [[token for token in each.tokens if token != end] for each in found]
            return outputs

        return decode

    return build


def generate(bundle: Bundle, options: argparse.Namespace) -> Decode:
    """transformers' generate, sentences of similar length together."""
    from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

    model, source, target = bundle.config.model, bundle.source_tokenizer, bundle.target_tokenizer
    pre_norm = model.norm_place == "pre"
    kinds: tuple[Any, Any] = (PegasusConfig, PegasusForConditionalGeneration) if pre_norm else (MarianConfig, MarianMTModel)
    theirs = kinds[1](
        kinds[0](
            vocab_size=model.target_vocabulary, d_model=model.d_model, encoder_layers=model.encoder_layers,
            decoder_layers=model.decoder_layers, encoder_ffn_dim=model.d_ff, decoder_ffn_dim=model.d_ff,
            encoder_attention_heads=model.n_heads, decoder_attention_heads=model.n_heads, activation_function="relu",
            scale_embedding=True, max_position_embeddings=512, pad_token_id=target.pad, bos_token_id=target.bos,
            eos_token_id=target.eos, forced_eos_token_id=None, decoder_start_token_id=target.bos, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    weights = marian_names(bundle)
    missing = theirs.load_state_dict(weights, strict=False)
    unknown = [name for name in missing.missing_keys if "final_logits_bias" not in name]
    if missing.unexpected_keys or unknown:
        raise SystemExit(f"weights without a place: {missing.unexpected_keys}; places without weights: {unknown}")
    length: dict[str, Any] = {"max_length": LONGEST + 1} if options.model else {"min_length": FORCED + 1, "max_length": FORCED + 1}

    @torch.inference_mode()
    def decode(lines: Lines, beam: int, size: int) -> Lines:
        ids = [[*source.encode(" ".join(line)), source.eos] for line in lines]
        outputs: dict[int, list[str]] = {}
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            rows, mask = pad_rows([ids[place] for place in batch], pad=source.pad, device=torch.device("cpu"))
            made = theirs.generate(
                input_ids=rows, attention_mask=mask.long(), num_beams=beam, do_sample=False, length_penalty=1.0, early_stopping=False,
                **length,
            )  # fmt: skip
            for place, output in zip(batch, made.tolist(), strict=True):
                outputs[place] = [target.token(token) for token in output if token not in (target.pad, target.bos, target.eos)]
        return [outputs[place] for place in range(len(lines))]

    return decode


def marian_names(bundle: Bundle) -> dict[str, torch.Tensor]:
    """The weights under the names that Marian and Pegasus share."""
    model, weights = bundle.model, {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        weights[f"model.{side}.embed_tokens.weight"] = stack.embedding.weight
        weights[f"model.{side}.embed_positions.weight"] = sinusoids(512, bundle.config.model.d_model)
        if bundle.config.model.norm_place == "pre":
            weights |= {f"model.{side}.layer_norm.{name}": value for name, value in stack.final_norm.named_parameters()}
        for number, layer in enumerate(stack.layers):
            place = f"model.{side}.layers.{number}"
            parts = [("self_attn", layer.self_attn, layer.norm1)]
            parts += [("encoder_attn", layer.cross_attn, layer.norm2)] if side == "decoder" else []
            for name, attention, norm in parts:
                for theirs, ours in (("q_proj", "w_q"), ("k_proj", "w_k"), ("v_proj", "w_v"), ("out_proj", "w_concat")):
                    of_it = getattr(attention, ours).named_parameters()  # type: ignore[union-attr]
                    weights |= {f"{place}.{name}.{theirs}.{kind}": value for kind, value in of_it}
                weights |= {f"{place}.{name}_layer_norm.{kind}": value for kind, value in norm.named_parameters()}  # type: ignore[union-attr]
            last = layer.norm3 if side == "decoder" else layer.norm2
            for theirs, part in (("fc1", layer.feed_forward[0]), ("fc2", layer.feed_forward[2]), ("final_layer_norm", last)):  # type: ignore[index]
                weights |= {f"{place}.{theirs}.{kind}": value for kind, value in part.named_parameters()}  # type: ignore[union-attr]
    weights["model.shared.weight"] = weights["model.encoder.embed_tokens.weight"]
    weights["lm_head.weight"] = model.output.weight
    return weights


def ctranslate2(kind: str) -> Callable[[Bundle, argparse.Namespace], Decode]:
    """CTranslate2's Translator with this type of weights."""

    def build(bundle: Bundle, options: argparse.Namespace) -> Decode:
        import ctranslate2 as tool

        from dragoman.interop.ctranslate2 import write_folder

        with tempfile.TemporaryDirectory() as folder:
            write_folder(bundle, Path(folder))
            # A thread for each of several sentences is its fastest here; of one sentence it may be all threads together.
            several, together = (
                tool.Translator(folder, compute_type=kind, inter_threads=options.threads // each, intra_threads=each)
                for each in (1, options.threads)
            )
        length = {"max_decoding_length": LONGEST} if options.model else {"min_decoding_length": FORCED, "max_decoding_length": FORCED}

        def alone(translator: Any, lines: Lines, beam: int) -> list[Any]:
            return [translator.translate_batch([line], beam_size=beam, **length)[0] for line in lines]

        @cache
        def fastest_alone(beam: int) -> Any:
            some, seconds = [line.split() for line in lines_of("test.2016.en")[:8]], {}
            for translator in (several, together) * 2:  # the second time counts
                began = time.perf_counter()
                alone(translator, some, beam)
                seconds[translator] = time.perf_counter() - began
            return min(seconds, key=seconds.__getitem__)

        def decode(lines: Lines, beam: int, size: int) -> Lines:
            found = alone(fastest_alone(beam), lines, beam) if size == 1 else []
            found = found or several.translate_batch(lines, beam_size=beam, max_batch_size=size, **length)
            return [each.hypotheses[0] for each in found]

        return decode

    return build


CONTENDERS: dict[str, Callable[[Bundle, argparse.Namespace], Decode]] = {
    **{f"dragoman-{precision}": dragoman(precision) for precision in ("fp32", "bf16", "int8")},
    "transformers": generate,
    **{f"ctranslate2-{kind}": ctranslate2(kind) for kind in ("float32", "int8")},
}


# The result


def report(options: argparse.Namespace, answers: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """A table on standard output, and all of it in a file."""
    exact = {mode: rounds[0]["outputs"] for mode, rounds in answers.get("dragoman-fp32", {}).items()}
    said = None if options.model else FORCED - 1  # of Dragoman's forced tokens the last is the end, of the others' it is a word
    rows: dict[str, dict[str, Any]] = {}
    for name, modes in answers.items():
        rows[name] = {}
        for mode, rounds in modes.items():
            rates = [answer["rate"] for answer in rounds]
            facts: dict[str, Any] = {"sentences_a_second": round(statistics.median(rates), 1), "rounds": [round(each, 1) for each in rates]}
            outputs = rounds[0]["outputs"]
            if "alone" in mode:
                facts["milliseconds"] = round(1000 / statistics.median(rates), 2)
            else:
                facts |= {"batch": rounds[0]["batch"], "tokens": sum(map(len, outputs))}
            if exact:
                same = [one[:said] == other[:said] for one, other in zip(outputs, exact[mode], strict=True)]
                facts["same_outputs"] = round(statistics.mean(same), 3)
            rows[name][mode] = facts
    facts = {
        "command": " ".join(["python", "benchmarks/decoding_speed.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "device": platform.processor() or platform.machine(),
        "threads": options.threads,
        "seconds": "of the process's own processor time" if options.processor_time else "of the clock",
        "torch": torch.__version__,
        "contenders": rows,
    }
    for mode in MODES:
        ours = {name: row[mode]["sentences_a_second"] for name, row in rows.items() if name.startswith("dragoman")}
        best = max(ours, key=lambda name: ours[name], default=None)
        if best:
            others = {name: round(ours[best] / row[mode]["sentences_a_second"], 2) for name, row in rows.items() if name not in ours}
            facts[f"{mode}: {best} is faster by"] = others
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
