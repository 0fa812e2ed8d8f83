"""Equality with PyTorch's own attention and Transformer once weights are copied."""

import pytest
import torch
from torch import Tensor, nn

from dragoman.model import MultiHeadAttention, ScaledDotProductAttention, Transformer, causal_mask
from paper.models import SIZES, random_ids, random_numbers, small_model, token_mask

SOURCE_MASK = token_mask(7, 3, 5)


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.w_q, ours.w_k, ours.w_v)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(ours.w_concat.state_dict())


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    copy_attention(ours.self_attn, theirs.self_attn)
    if hasattr(ours, "cross_attn"):
        copy_attention(ours.cross_attn, theirs.multihead_attn)
    for our_name, their_name in {"feed_forward.0": "linear1", "feed_forward.2": "linear2"}.items():
        theirs.get_submodule(their_name).load_state_dict(ours.get_submodule(our_name).state_dict())
    for name in ("norm1", "norm2", "norm3"):
        if hasattr(ours, name):
            theirs.get_submodule(name).load_state_dict(ours.get_submodule(name).state_dict())


def pytorchs(ours: Transformer, *, pre_norm: bool) -> nn.Transformer:
    """PyTorch's Transformer with our weights; the final norms that it always adds are taken away from a post-norm one."""
    theirs = nn.Transformer(
        SIZES["d_model"], SIZES["n_heads"], SIZES["encoder_layers"], SIZES["decoder_layers"], SIZES["d_ff"],
        dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=pre_norm,
    )  # fmt: skip
    for our_stack, their_stack in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for our_layer, their_layer in zip(our_stack.layers, their_stack.layers, strict=True):
            copy_layer(our_layer, their_layer)
        if pre_norm:
            their_stack.norm.load_state_dict(our_stack.final_norm.state_dict())
        else:
            their_stack.norm = nn.Identity()
    return theirs.train()  # in evaluation it takes another path, which writes zeros at padding


@pytest.mark.parametrize(
    "mask", [None, causal_mask(7), token_mask(7, 3)[:, None, None], causal_mask(7) & token_mask(7, 3)[:, None, None]],
    ids=["no mask", "causal", "padding", "both"],
)  # fmt: skip
def test_multi_head_attention_equals_pytorchs(mask: Tensor | None) -> None:
    theirs, ours = nn.MultiheadAttention(24, 4, batch_first=True), MultiHeadAttention(24, 4)
    copy_attention(ours, theirs)
    query, key, value = (random_numbers(2, 7, 24, seed=seed) for seed in (1, 2, 3))
    blocked = None if mask is None else ~mask.expand(2, 4, 7, 7).flatten(0, 1)
    output, weights = theirs(query, key, value, attn_mask=blocked, average_attn_weights=False)
    torch.testing.assert_close(ours(query, key, value, mask), output, atol=1e-6, rtol=0)

    seen: list[Tensor] = []
    ours.attention = ScaledDotProductAttention()
    ours.attention.register_forward_hook(lambda _module, _inputs, attended: seen.append(attended.weights))
    torch.testing.assert_close(ours(query, key, value, mask), output, atol=1e-6, rtol=0)
    torch.testing.assert_close(seen[0], weights, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
def test_the_whole_model_equals_pytorchs(pre_norm: bool) -> None:
    ours = small_model(norm_place="pre" if pre_norm else "post")
    theirs = pytorchs(ours, pre_norm=pre_norm)
    source, target = random_ids(3, 7), random_ids(3, 6, seed=5)
    embedded = [stack.positions(stack.embedding(ids)) for stack, ids in ((ours.encoder, source), (ours.decoder, target))]
    padding = ~SOURCE_MASK
    hidden = theirs(*embedded, tgt_mask=~causal_mask(6), src_key_padding_mask=padding, memory_key_padding_mask=padding)
    memory = theirs.encoder(embedded[0], src_key_padding_mask=padding)
    torch.testing.assert_close(ours.encode(source, SOURCE_MASK), memory, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours(source, target, SOURCE_MASK), hidden @ ours.output.weight.T, atol=1e-5, rtol=0)


def test_gradients_equal_pytorchs() -> None:
    ours = small_model()
    theirs = pytorchs(ours, pre_norm=False)
    source, target = random_ids(3, 7), random_ids(3, 6, seed=5)
    ours.decode(target, ours.encode(source, SOURCE_MASK), SOURCE_MASK).square().sum().backward()
    embedded = [stack.positions(stack.embedding(ids)) for stack, ids in ((ours.encoder, source), (ours.decoder, target))]
    theirs(
        *embedded, tgt_mask=~causal_mask(6), src_key_padding_mask=~SOURCE_MASK, memory_key_padding_mask=~SOURCE_MASK
    ).square().sum().backward()  # fmt: skip
    for our_stack, their_stack in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for our_layer, their_layer in zip(our_stack.layers, their_stack.layers, strict=True):
            torch.testing.assert_close(our_layer.feed_forward[0].weight.grad, their_layer.linear1.weight.grad, atol=1e-4, rtol=1e-4)
            queries = their_layer.self_attn.in_proj_weight.grad[:24]
            torch.testing.assert_close(our_layer.self_attn.w_q.weight.grad, queries, atol=1e-4, rtol=1e-4)
