"""Section 3: the sizes of a model, what it is made of, and its named departures from the paper."""

from typing import Literal, Self

from pydantic import Field, model_validator

from dragoman.config.settings import Settings

Architecture = Literal["encoder-decoder", "decoder-only", "encoder-only", "recurrent", "convolutional"]


_OF_ATTENTION = (
    "d_ff", "n_heads", "d_k", "d_v", "attention_dropout", "activation_dropout", "activation", "feed_forward_bias", "norm", "norm_place",
    "final_norm", "norm_bias", "norm_epsilon", "attention_bias", "kv_heads", "qk_norm", "initialization", "alignment_layer",
    "alignment_head",
)  # fmt: skip
"""What means nothing to the models that the paper replaced."""


_LARGEST_TABLE = 2**31
"""Numbers of a table of positions, which is computed whatever a model's file holds."""


class ModelConfig(Settings):
    """Section 3: the sizes and the named departures of a model."""

    architecture: Architecture = Field(
        "encoder-decoder",
        description="The paper's model of two sequences (3.1), or of one: a decoder that predicts what follows (decoder-only, as in GPT) "
        "or an encoder that fills in what is masked (encoder-only, as in BERT); or what it replaced, of recurrent or convolutional layers.",
    )
    d_model: int = Field(512, gt=0, le=1_000_000, description="Width of every sub-layer's output and of the embeddings (3.1).")
    d_ff: int = Field(2048, gt=0, le=10_000_000, description="Inner width of the feed-forward networks (3.3).")
    n_heads: int = Field(8, gt=0, le=1_000_000, description="Attention heads h of each attention sub-layer (3.2.2).")
    d_k: int | None = Field(
        None, gt=0, le=1_000_000, description="Width of a head's queries and keys; d_model / n_heads when not given (3.2.2)."
    )
    d_v: int | None = Field(None, gt=0, le=1_000_000, description="Width of a head's values; d_model / n_heads when not given (3.2.2).")
    encoder_layers: int = Field(6, gt=0, le=1000, description="Layers N of the encoder (3.1).")
    decoder_layers: int = Field(6, gt=0, le=1000, description="Layers N of the decoder (3.1).")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="P_drop on each sub-layer's output and on the sums of embeddings and positions (5.4)."
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on the attention weights; the paper's base model has none.")
    activation_dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout inside the feed-forward networks; the paper's base model has none."
    )
    activation: Literal["relu", "gelu", "gelu-tanh", "swish", "swiglu"] = Field(
        "relu",
        description="Of the feed-forward networks: the paper's max(0, x) (3.3), GELU exactly or by tanh, x · sigmoid(x) (swish), or "
        "SwiGLU, whose third matrix is d_ff wide too.",
    )
    feed_forward_bias: bool = Field(True, description="Biases in the feed-forward networks, as in equation (2).")
    norm: Literal["layer", "rms"] = Field(
        "layer", description="LayerNorm as in the paper (3.1), or RMSNorm, which subtracts no mean and adds no bias."
    )
    norm_place: Literal["post", "pre", "deepnorm"] = Field(
        "post",
        description="The norm after each residual sum as in the paper (post), before each sub-layer with a final norm (pre), or after a "
        "sum that weighs its input by α (deepnorm).",
    )
    final_norm: bool = Field(
        False, description="A norm after the last layer also with norm_place='post' or 'deepnorm'; with 'pre' there always is one."
    )
    norm_bias: bool = Field(True, description="A bias in each LayerNorm; an RMSNorm never has one.")
    norm_epsilon: float = Field(1e-6, gt=0, description="ε inside the norms' square root; 1e-6 in the authors' code.")
    attention_bias: bool = Field(True, description="Biases in the attention projections; with them Table 3's parameter counts come out.")
    kv_heads: int = Field(
        0, ge=0, description="Heads of keys and values, each shared by n_heads / kv_heads heads of queries; 0 is n_heads, as in the paper."
    )
    qk_norm: bool = Field(False, description="RMSNorm on each head's queries and keys before their product; the paper has none.")
    alignment_layer: int = Field(
        0,
        ge=0,
        description="Decoder layer, from 1, of which a head is trained to align (training.alignment_weight) and gives alignments; 0 is "
        "none, and becomes the last but one when such a training starts.",
    )
    alignment_head: int = Field(1, gt=0, description="The head of alignment_layer, from 1, that is trained to align.")
    positions: Literal["sinusoidal", "sinusoidal-concat", "learned", "rotary"] = Field(
        "sinusoidal",
        description="The paper's interleaved sinusoids (3.5), all sines before all cosines, a learned table (Table 3 row E), or none added "
        "and the heads of self-attention rotated (rotary).",
    )
    rotary_base: float = Field(10_000.0, gt=1, description="For rotary: the base of the wavelengths, the 10000 of Section 3.5.")
    scale_embedding: bool = Field(True, description="Embeddings times √d_model, as in Section 3.4.")
    embedding_norm: bool = Field(
        False, description="For encoder-only: a norm on the sums of embeddings and positions, before their dropout, as BERT has."
    )
    token_types: int = Field(
        0, ge=0, le=1000, description="For encoder-only: kinds of segment, whose learned vectors are added to the embeddings; BERT has 2."
    )
    output_transform: bool = Field(
        False, description="For encoder-only: a linear layer, GELU and a norm before the output matrix, as BERT has."
    )
    pooler: bool = Field(False, description="For encoder-only: a linear layer and tanh on the first position's state, as BERT has.")
    output_bias: bool = Field(False, description="A bias for each class after the output matrix; the paper has none.")
    initialization: Literal["xavier", "normal"] = Field(
        "xavier",
        description="Of fresh weights: the authors' Xavier uniform, or N(0, 0.02²) as in GPT and BERT, in a decoder-only model divided by "
        "√(2N) where a sub-layer ends.",
    )
    max_positions: int = Field(1024, gt=0, le=1_000_000, description="The longest sequence the model takes, in tokens with the end token.")
    tie: Literal["all", "decoder", "none"] = Field(
        "all", description="One matrix for both embeddings and the output (all, 3.4), for target and output only (decoder), or none shared."
    )
    source_vocabulary: int = Field(
        40_960, gt=4, le=10_000_000, description="Rows of the source embedding; set from the tokenizer when training starts."
    )
    target_vocabulary: int = Field(
        40_960, gt=4, le=10_000_000, description="Rows of the target embedding; set from the tokenizer when training starts."
    )
    pad: int = Field(0, ge=0, description="Id of the padding token, whose embedding row starts at zero.")
    cell: Literal["lstm", "gru"] = Field("lstm", description="For recurrent: the cell, a long short-term memory or a gated recurrent unit.")
    kernel_width: int = Field(3, gt=0, le=1000, description="For convolutional: positions in a convolution's window.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if self.older:
            problems += self._older_problems()
        elif self.positions.startswith("sinusoidal") and self.d_model % 2:
            problems.append(f"d_model={self.d_model} must be even for sinusoidal positions, which come in pairs of sine and cosine")
        if not self.older and (self.d_k is None or self.d_v is None) and self.d_model % self.n_heads:
            problems.append(f"d_model={self.d_model} does not divide by n_heads={self.n_heads}; change one, or give both d_k and d_v")
        if not self.older and self.n_heads % self.key_value_heads:
            problems.append(f"n_heads={self.n_heads} does not divide by kv_heads={self.kv_heads}; change one")
        if not self.older and self.positions == "rotary" and self.key_width % 2:
            problems.append(f"heads of width d_k={self.key_width} cannot rotate in pairs; give an even d_k for positions='rotary'")
        width = 0 if self.older or self.positions == "learned" else self.key_width if self.positions == "rotary" else self.d_model
        if self.max_positions * width > _LARGEST_TABLE:
            problems.append(
                f"max_positions={self.max_positions} of {width} numbers each are a table of positions of more than 2^31 numbers; lower it"
            )
        if self.tie == "all" and self.source_vocabulary != self.target_vocabulary:
            problems.append(
                f"tie='all' needs one vocabulary, but source_vocabulary={self.source_vocabulary} and "
                f"target_vocabulary={self.target_vocabulary}; set tie='decoder' or a joint vocabulary"
            )
        if self.pad >= min(self.source_vocabulary, self.target_vocabulary):
            problems.append(f"pad={self.pad} lies outside the vocabulary")
        problems += self._wrong_alignment() + self._without_effect()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _wrong_alignment(self) -> list[str]:
        """A head to train that the decoder does not have; what is no Transformer's is for `_without_effect`."""
        if self.single or self.older:
            return []
        problems = []
        if self.alignment_layer > self.decoder_layers:
            problems.append(
                f"alignment_layer={self.alignment_layer} is more than the decoder_layers={self.decoder_layers}; give one of them"
            )
        if self.alignment_head > self.n_heads:
            problems.append(f"alignment_head={self.alignment_head} is more than the n_heads={self.n_heads}; give one of them")
        return problems

    def _without_effect(self) -> list[str]:
        """Settings that mean nothing to this model and yet are not as they are by default."""
        idle: dict[str, str] = {}
        kind = f"architecture={self.architecture!r}"
        if self.architecture != "encoder-only":
            idle |= dict.fromkeys(("embedding_norm", "token_types", "output_transform", "pooler"), kind)
        if self.single:
            idle |= dict.fromkeys(("alignment_layer", "alignment_head"), kind)
        if self.architecture == "decoder-only":
            idle["encoder_layers"] = kind
        if self.architecture == "encoder-only":
            idle["decoder_layers"] = kind
        if self.older:
            idle |= dict.fromkeys(_OF_ATTENTION, kind)
        if self.architecture == "recurrent":
            idle["positions"] = kind
        else:
            idle["cell"] = kind
        if self.architecture != "convolutional":
            idle["kernel_width"] = kind
        if self.positions != "rotary":
            idle["rotary_base"] = f"positions={self.positions!r}"
        if self.norm_place == "pre":
            idle["final_norm"] = "norm_place='pre'"
        if self.norm == "rms":
            idle["norm_bias"] = "norm='rms'"
        problems = [
            f"{name}={getattr(self, name)} means nothing to {kind}; leave it out"
            for name, kind in idle.items()
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.single and (self.tie == "decoder" or self.source_vocabulary != self.target_vocabulary):
            problems.append(f"a model that is {self.architecture} has one vocabulary: set tie to all or none, and both vocabularies alike")
        return problems

    @property
    def single(self) -> bool:
        """Whether the model sees one sequence, not a source and a target."""
        return self.architecture in ("decoder-only", "encoder-only")

    def _older_problems(self) -> list[str]:
        """What a recurrent or convolutional model cannot be built with."""
        if self.architecture == "recurrent" and self.d_model % 2:
            return [
                f"d_model={self.d_model} must be even for architecture='recurrent', whose encoder reads in two directions, half as wide"
            ]
        if self.architecture == "convolutional" and (self.positions != "learned" or self.scale_embedding):
            return [
                f"positions={self.positions!r} and scale_embedding={str(self.scale_embedding).lower()} are not for "
                "architecture='convolutional'; set positions='learned' and scale_embedding=false"
            ]
        return []

    @property
    def older(self) -> bool:
        """Whether the model is of the kinds that the paper replaced."""
        return self.architecture in ("recurrent", "convolutional")

    @property
    def key_width(self) -> int:
        """d_k as used."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_width(self) -> int:
        """d_v as used."""
        return self.d_v or self.d_model // self.n_heads

    @property
    def key_value_heads(self) -> int:
        """kv_heads as used."""
        return self.kv_heads or self.n_heads
