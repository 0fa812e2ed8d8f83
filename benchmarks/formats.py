"""A trained model in other programs' formats: greedy translations of Multi30k's 1,000 test sentences, and how many are Dragoman's own.

    python benchmarks/formats.py --model RUN --output benchmarks/formats.json
    python benchmarks/formats.py --minutes 60 --output benchmarks/formats.json

RUN is a model of English to German, of raw text or of the published byte pairs (`benchmarks/multi30k.py`); without one a model of the
preset tiny is trained for so many minutes. It is exported to Hugging Face, to CTranslate2 in float32 and in 8 bits, and to ONNX; each
translates test_2016_flickr greedily and with at most 60 tokens, CTranslate2 with beam 4 as well, unless --greedy is given. Test sentences
from DRAGOMAN_DATA (or ../shared/data). It needs `pip install 'dragoman[ctranslate2,onnx,huggingface]'`.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics import BLEU

from dragoman.bundle import Bundle, load_bundle
from dragoman.decoding.options import SearchOptions
from dragoman.decoding.translate import Translator
from dragoman.interop import ctranslate2, huggingface, onnx
from dragoman.interop.ctranslate2_engine import CTranslate2Engine, Prepared

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("DRAGOMAN_DATA", HERE.parents[1] / "shared" / "data")) / "multi30k"
MOST = 60  # tokens of an output
BATCH = 50  # sentences that onnxruntime and transformers translate together


def main() -> None:
    """Exports, translates, compares, and writes what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="a run or a bundle")
    which.add_argument("--minutes", type=float, help="train a model for so long")
    parser.add_argument("--sentences", type=int, default=1000, help="how many of the test set (default: all)")
    parser.add_argument("--greedy", action="store_true", help="leave the beam out")
    parser.add_argument("--output", type=Path, help="where the result goes as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bundle = load_bundle(options.model or trained(Path(scratch) / "run", options.minutes))
        facts = compared(bundle, Path(scratch), options.sentences, beams=[1] if options.greedy else [1, 4])
    given = ["RUN" if options.model and each == str(options.model) else each for each in sys.argv[1:]]
    facts["command"] = " ".join(["python", "benchmarks/formats.py", *given])
    print(json.dumps(facts, indent=2))
    if options.output:
        options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def trained(run: Path, minutes: float) -> Path:
    """A model of the preset tiny."""
    raw = DATA / "raw"
    command = [sys.executable, "-m", "dragoman", "train", "en-de", "--train", str(raw / "train"), "--valid", str(raw / "val")]
    subprocess.run([*command, "--preset", "tiny", "--max-minutes", str(minutes), "--out", str(run)], check=True)
    return run


def lines_of(bundle: Bundle, side: str) -> list[str]:
    """The test sentences as the model wants them."""
    segmented = bundle.config.data.tokenizer == "whitespace"
    path = DATA / ("bpe10k/en-de/test.2016" if segmented else "raw/test_2016_flickr")
    with gzip.open(f"{path}.{side}.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def compared(bundle: Bundle, scratch: Path, sentences: int, *, beams: Sequence[int]) -> dict[str, Any]:
    """The translations by each format beside Dragoman's own."""
    sources = lines_of(bundle, "en")[:sentences]
    references = [bundle.target_tokenizer.plain(line) for line in lines_of(bundle, "de")[:sentences]]
    search: dict[str, Any] = {"max_length": MOST, "options": SearchOptions(repetition_guard=0)}
    here = Translator(bundle)
    outputs = {named("dragoman", beam): texts(here, sources, beam=beam, **search) for beam in beams}
    found = {}
    for kind in ctranslate2.QUANTIZATIONS:
        folder = scratch / f"ctranslate2-{kind}"
        found[f"ctranslate2 {kind}"] = ctranslate2.export_model(bundle, folder, quantization=kind)[0].to_json()
        engine = CTranslate2Engine(bundle, Prepared(folder, None), precision="int8" if kind == "int8" else "fp32")
        there = Translator(bundle, engine=engine)
        outputs |= {named(f"ctranslate2 {kind}", beam): texts(there, sources, beam=beam, **search) for beam in beams}
    found["huggingface"] = huggingface.export_model(bundle, scratch / "huggingface")[0].to_json()
    outputs["huggingface"] = by_transformers(scratch / "huggingface", sources)
    found["onnx"] = onnx.export_model(bundle, scratch / "onnx")[0].to_json()
    outputs["onnx"] = by_onnx(bundle, scratch / "onnx", sources)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "model": {"parameters": sum(each.numel() for each in bundle.model.parameters()), **dict(bundle.info)},
        "sentences": len(sources),
        "exports": {name: {key: each[key] for key in ("against", "difference", "largest_logit")} for name, each in found.items()},
        "outputs": {name: facts_of(lines, outputs, name, references) for name, lines in outputs.items()},
    }


def named(program: str, beam: int) -> str:
    """A program with its beam."""
    return program if beam == 1 else f"{program}, beam {beam}"


def texts(translator: Translator, sources: Sequence[str], **search: Any) -> list[str]:
    """Plain translations."""
    return [each.text for each in translator.translate(sources, **search)]


def facts_of(lines: Sequence[str], outputs: dict[str, list[str]], name: str, references: Sequence[str]) -> dict[str, Any]:
    """How many are Dragoman's, and BLEU."""
    own = outputs["dragoman, beam 4" if name.endswith("beam 4") else "dragoman"]
    bleu = BLEU().corpus_score(list(lines), [list(references)])
    return {"same as dragoman": sum(one == other for one, other in zip(lines, own, strict=True)), "bleu": round(bleu.score, 2)}


def by_transformers(folder: Path, sources: Sequence[str]) -> list[str]:
    """Greedy translations by MarianMTModel and AutoTokenizer, from text to text, sentences of similar length together."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    order, found = sorted(range(len(sources)), key=lambda place: len(sources[place])), {}
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        batch = tokenizer([sources[place] for place in places], padding=True, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**batch, num_beams=1, do_sample=False, max_new_tokens=MOST)
        found.update(zip(places, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True))
    return [found[place] for place in range(len(sources))]


def by_onnx(bundle: Bundle, folder: Path, sources: Sequence[str]) -> list[str]:
    """Greedy translations in onnxruntime, sentences of similar length together."""
    model, source, target = onnx.OnnxModel(folder), bundle.source_tokenizer, bundle.target_tokenizer
    ids = [source.as_source(each) for each in source.encode_batch(list(sources))]
    order, found = sorted(range(len(ids)), key=lambda place: len(ids[place])), {}
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        # The last token that Dragoman allows can only be the end.
        found.update(zip(places, onnx.greedy(model, [ids[place] for place in places], most=MOST - 1), strict=True))
    return [target.decode(found[place]) for place in range(len(ids))]


if __name__ == "__main__":
    main()
