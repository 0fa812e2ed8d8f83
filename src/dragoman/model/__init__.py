"""Section 3: the model. Tensors in, tensors out; no files, no text, no optimiser."""

from dragoman.model.attention import FusedAttention, MultiHeadAttention, ScaledDotProductAttention, scaled_dot_product_attention
from dragoman.model.build import build_model
from dragoman.model.cache import Cache, DecoderCache, SelfCache
from dragoman.model.embedding import Embedding, LearnedPositions, PositionalEncoding, RotaryPositions, sinusoids
from dragoman.model.layers import DecoderLayer, EncoderLayer, FeedForward, GatedFeedForward
from dragoman.model.masks import causal_mask, padding_mask
from dragoman.model.transformer import Decoder, Encoder, EncoderDecoder, LanguageModel, MaskedLanguageModel, Model, Transformer

__all__ = [
    "Cache",
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "EncoderLayer",
    "FeedForward",
    "FusedAttention",
    "GatedFeedForward",
    "LanguageModel",
    "LearnedPositions",
    "MaskedLanguageModel",
    "Model",
    "MultiHeadAttention",
    "PositionalEncoding",
    "RotaryPositions",
    "ScaledDotProductAttention",
    "SelfCache",
    "Transformer",
    "build_model",
    "causal_mask",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoids",
]
