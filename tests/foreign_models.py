"""Small random models in other programs' layouts, written name by name: FX-GPT2, FX-MARIAN and FX-BERT of the reported faults, and more."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

WIDTH, INNER, HEADS, LAYERS, POSITIONS = 16, 24, 2, 2, 32

LINES = [
    "A man rides a horse on the beach.",
    "Two dogs play with a ball in the snow!",
    "She doesn't like the naïve café, does she?",
    "Ein Mann reitet ein Pferd; zwei Hunde spielen.",
    "The children were singing 12 songs, 3.5 hours long.",
    "Über den Wolken, grenzenlos…",
] * 4

ODD_TEXTS = [
    *("A man rides a horse.", "", " ", "  two  spaces  ", "tab\tand\u00a0no-break\u3000wide", "line\nfeed\r\nand more"),
    *("naïve café — “quoted”…", "ΑΒΓ ﬁ ½ ① ẞ Å Å", "東京 日本語 我们明天早上去公园散步。", "🐟 👩‍🚀 🇳🇴 👍🏽", "don't we'll I'M they'RE"),
    *("12345 3.14 1,000", "?!;:()[]{}@#$%^&*_=+|~`", "a" * 60, "\u200b\u200dzero", "▁ ▁▁under", "<0x41> <x>", "UPPER lower MiXeD"),
]


def random_weights(shapes: dict[str, tuple[int, ...]], *, seed: int = 3) -> dict[str, Tensor]:
    """Large enough that no output is like another."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: weight + 1 if "norm" in name.lower() or ".ln_" in name or "ln_f" in name else weight for name, weight in weights.items()}


def write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    """config.json and model.safetensors in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.contiguous().clone() for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def gpt2(folder: Path, *, rows: int | None = None, files: str = "whole", **config: Any) -> Path:
    """GPT-2 with a byte-level vocabulary of 270 entries, as tokenizer.json or (``files="parts"``) vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    count, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("<|endoftext|>")
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (rows or count, WIDTH), "wpe.weight": (POSITIONS, WIDTH), **norm("ln_f")}
    for layer in range(LAYERS):
        name = f"h.{layer}"
        shapes |= {**norm(f"{name}.ln_1"), **norm(f"{name}.ln_2")}
        for part, inputs, outputs in (
            ("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH), ("mlp.c_fc", WIDTH, INNER), ("mlp.c_proj", INNER, WIDTH)
        ):  # fmt: skip
            shapes |= {f"{name}.{part}.weight": (inputs, outputs), f"{name}.{part}.bias": (outputs,)}
    values = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": rows or count, "n_embd": WIDTH, "n_inner": INNER,
        "n_layer": LAYERS,
        "n_head": HEADS, "n_positions": POSITIONS, "bos_token_id": end, "eos_token_id": end, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }  # fmt: skip
    weights = {f"transformer.{name}": weight for name, weight in random_weights(shapes).items()}
    write(folder, values | config, weights | {"transformer.h.0.attn.bias": torch.ones(1, 1, POSITIONS, POSITIONS)})
    if files == "whole":
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        saved = json.loads(tokenizer.to_str())["model"]
        (folder / "vocab.json").write_text(json.dumps(saved["vocab"], ensure_ascii=False), encoding="utf-8")
        merges = "\n".join(" ".join(pair) for pair in saved["merges"])
        (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    special = {f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "unk")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **special}))
    return folder


def bert(folder: Path, *, head: bool = True, pad: int = 0, **config: Any) -> Path:
    """BERT with 120 word pieces, whose padding may be any of them, and a head for masked words or none."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[CLS]", "[UNK]", "[SEP]", "[MASK]", "[unused1]", "[unused2]"]
    specials.insert(pad, "[PAD]")
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    entries = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(entries), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        **norm("embeddings.LayerNorm"),
        **linear("pooler.dense", WIDTH, WIDTH),
    }
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= linear(f"{name}.attention.{part}", WIDTH, WIDTH)
        shapes |= {**norm(f"{name}.attention.output.LayerNorm"), **norm(f"{name}.output.LayerNorm")}
        shapes |= {**linear(f"{name}.intermediate.dense", INNER, WIDTH), **linear(f"{name}.output.dense", WIDTH, INNER)}
    if head:
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes |= {**linear("cls.predictions.transform.dense", WIDTH, WIDTH), **norm("cls.predictions.transform.LayerNorm")}
        shapes |= {"cls.predictions.bias": (len(entries),), **linear("cls.seq_relationship", 2, WIDTH)}
    values = {
        "model_type": "bert", "architectures": ["BertForPreTraining" if head else "BertModel"], "vocab_size": len(entries),
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": POSITIONS,
        "pad_token_id": pad, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    write(folder, values | config, random_weights(shapes))
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry, _ in entries), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return folder


def llama(folder: Path, *, tied: bool = False, kv_heads: int = 2, theta: float = 500.0, biases: bool = False, **config: Any) -> Path:
    """Llama with 4 heads, ``kv_heads`` of them for keys and values, and a byte-level vocabulary whose start is put before a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    start, end, rows = tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|end|>"), tokenizer.get_vocab_size()
    width = WIDTH // 4
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        parts = {"q_proj": 4 * width, "k_proj": kv_heads * width, "v_proj": kv_heads * width, "o_proj": WIDTH}
        for part, outputs in parts.items():
            matrix = linear(f"{name}.self_attn.{part}", outputs, WIDTH)
            shapes |= matrix if biases else {f"{name}.self_attn.{part}.weight": (outputs, WIDTH)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (INNER, WIDTH) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (WIDTH, INNER)}
        shapes |= {f"{name}.{part}_layernorm.weight": (WIDTH,) for part in ("input", "post_attention")}
    if not tied:
        shapes["lm_head.weight"] = (rows, WIDTH)
    values = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": rows, "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": kv_heads, "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5, "rope_theta": theta, "tie_word_embeddings": tied, "bos_token_id": start, "eos_token_id": end,
        "attention_bias": biases,
    }  # fmt: skip
    write(folder, values | config, random_weights(shapes))
    saved = json.loads(tokenizer.to_str())
    saved["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [start], "tokens": ["<|begin|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False), encoding="utf-8")
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def sentence_pieces(lines: list[str], size: int) -> bytes:
    """A unigram model of SentencePiece's own trainer; skips where the package is not installed."""
    trainer = pytest.importorskip("sentencepiece", reason="no sentencepiece: pip install 'dragoman[huggingface]'").SentencePieceTrainer
    model = io.BytesIO()
    trainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=size, hard_vocab_limit=False, minloglevel=2)
    return model.getvalue()


def marian(folder: Path, *, tags: tuple[str, ...] = (), shared: bool = True, prefix: str = "marian", **config: Any) -> Path:
    """MarianMT with two SentencePiece models over one vocabulary (or one each), pad last and first in decoding, eos 0; or Pegasus."""
    from dragoman.interop.sentencepiece import NORMAL, SentencePiece

    folder.mkdir(parents=True, exist_ok=True)
    vocabularies = []
    for side, lines in (("source", LINES[:3] * 8), ("target", LINES[3:] * 8)):
        (folder / f"{side}.spm").write_bytes(sentence_pieces(lines, 60))
        pieces = SentencePiece.read(folder / f"{side}.spm").pieces
        vocabularies.append([piece.text for piece in pieces if piece.type == NORMAL])
    both = list(dict.fromkeys(vocabularies[0] + vocabularies[1]))
    marks = [f">>{tag}<<" for tag in tags]
    entries = [["</s>", "<unk>", *marks, *(both if shared else side), "<pad>"] for side in vocabularies]
    if not shared:  # padding has one id for both
        longest = max(map(len, entries))
        entries = [[*side[:-1], *(f"<extra{n}>" for n in range(longest - len(side))), "<pad>"] for side in entries]
    for name, side in zip(("vocab.json", "target_vocab.json"), entries if not shared else entries[:1], strict=False):
        (folder / name).write_text(json.dumps({entry: token for token, entry in enumerate(side)}, ensure_ascii=False), encoding="utf-8")
    rows = len(entries[0])
    names = ["shared"] if shared else ["encoder.embed_tokens", "decoder.embed_tokens"]
    shapes: dict[str, tuple[int, ...]] = {f"model.{name}.weight": (rows, WIDTH) for name in names}
    shapes["final_logits_bias"] = (1, rows)
    for side in ("encoder", "decoder"):
        if prefix == "pegasus":
            shapes |= norm(f"model.{side}.layer_norm")
        for layer in range(LAYERS):
            name = f"model.{side}.layers.{layer}"
            for attention in ("self_attn", "encoder_attn") if side == "decoder" else ("self_attn",):
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes |= linear(f"{name}.{attention}.{part}", WIDTH, WIDTH)
                shapes |= norm(f"{name}.{attention}_layer_norm")
            shapes |= {**linear(f"{name}.fc1", INNER, WIDTH), **linear(f"{name}.fc2", WIDTH, INNER), **norm(f"{name}.final_layer_norm")}
    kind = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}[prefix]
    values = {
        "model_type": prefix, "architectures": [kind], "vocab_size": rows, "decoder_vocab_size": rows, "d_model": WIDTH,
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER, "activation_function": "swish", "dropout": 0.0, "attention_dropout": 0.0,
        "max_position_embeddings": POSITIONS, "scale_embedding": True, "pad_token_id": rows - 1, "eos_token_id": 0, "bos_token_id": 0,
        "decoder_start_token_id": rows - 1, "forced_eos_token_id": 0, "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": True,
        "static_position_embeddings": True, "normalize_before": False, "num_beams": 4, "bad_words_ids": [[rows - 1]],
        "is_encoder_decoder": True,
    }  # fmt: skip
    weights = random_weights(shapes)
    for name in names:
        weights[f"model.{name}.weight"] *= 0.2  # so that an output token does not call for itself again
        weights[f"model.{name}.weight"][rows - 1] = 0.0
    for name, weight in weights.items():  # the output is to depend on the source, and on what is said already, more than on anything else
        weight *= (
            0.1
            if "layer_norm.bias" in name or name == "final_logits_bias"
            else 5
            if name.endswith(("out_proj.weight", "fc2.weight"))
            else 1
        )
    write(folder, values | config, weights)
    special = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de", "separate_vocabs": not shared}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder
