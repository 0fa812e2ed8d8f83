"""Several steps of one hypothesis at once (Section 6.1, a beam of 1), which PyTorch runs by itself (`ByItself`).

A step of one sentence is so little arithmetic that what a search does between two of them takes a good part of the time.

Shapes:  M steps   n of them, until an output ends   D = d_model   S source positions   V target vocabulary
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.decoding.caches import KeysValues
from dragoman.decoding.decoder_layers import Folded
from dragoman.decoding.matrices import ByItself
from dragoman.decoding.output import OutputMatrix, likeliest_tokens
from dragoman.model.embedding import Embedding
from dragoman.model.transformer import Decoder


class Greedy(nn.Module):
    """A decoder with an output layer, which goes on by the most probable token.

    ``final_norm`` is the weight and bias of a norm behind the layers, or nothing.
    """

    final_norm: list[Tensor]

    def __init__(self, layers: nn.Module, embedding: Embedding, *, final_norm: list[Tensor], epsilon: float) -> None:
        super().__init__()
        self.layers, self.embeddings, self.scale = layers, embedding.weight.detach(), embedding.scale
        self.final_norm, self.epsilon = final_norm, epsilon

    def forward(
        self, token: Tensor, total: Tensor, positions: Tensor, own: list[KeysValues], memory: list[KeysValues], folded: list[Folded],
        mask: Tensor, start: int, output: tuple[OutputMatrix, Tensor], never: list[tuple[int, int]], eos: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Log-probabilities, sums of them with a total (1,), and ids of the most probable tokens after a token (1,): (n,) all three.

        ``positions`` (M, D) are what is added to the embeddings of M tokens, and ``start`` the keys that are seen before the first. Fewer
        come back where the end token does, or none is possible, without stretches of ids that may ``never`` follow. own, memory, folded
        and the mask (1, 1, 1, S) are as for `PlainLayers`; output is its matrix, with room for a row of logits (1, V).
        """
        values: list[Tensor] = []
        totals: list[Tensor] = []
        tokens: list[Tensor] = []
        none: Tensor | None = None
        for number, position in enumerate(torch.split(positions, 1)):
            x = torch.embedding(self.embeddings, token)  # (1, D)
            if self.scale != 1.0:
                x = x * self.scale
            x = self.layers(x + position, own, memory, folded, (none, mask), start + number, start + number + 1)
            if len(self.final_norm) > 0:
                x = torch.layer_norm(x, [x.size(1)], self.final_norm[0], self.final_norm[1], self.epsilon)
            value, found = likeliest_tokens(x, output[0], output[1], None, 1, never, 1, 1)
            token, total = found[0], total + value[0]
            values.append(value[0])
            totals.append(total)
            tokens.append(token)
            if int(token) == eos or not float(total) > -math.inf:
                break
        return torch.cat(values), torch.cat(totals), torch.cat(tokens)


def greedy_of(decoder: Decoder, layers: Any) -> ByItself | None:
    """A decoder whose layers are called so, as `Greedy`; None where PyTorch does not run them by itself, or something around them."""
    norm, embedding = decoder.final_norm, decoder.embedding
    if not isinstance(layers, ByItself) or layers.scripted is None or type(embedding) is not Embedding:
        return None
    if type(norm) is nn.Identity:
        return ByItself(Greedy(layers.module, embedding, final_norm=[], epsilon=0.0))
    if type(norm) is nn.LayerNorm and norm.weight is not None and norm.bias is not None:
        return ByItself(Greedy(layers.module, embedding, final_norm=[norm.weight.detach(), norm.bias.detach()], epsilon=norm.eps))
    return None
