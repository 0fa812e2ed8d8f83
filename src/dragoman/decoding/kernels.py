"""Steps of a decoder in bfloat16 as single calls, compiled by Numba where that is installed.

PyTorch takes an operation for each sign of an equation, and each reads and writes all numbers; here they stay in the processor, and a step
of all layers is one call that lets Python's other threads go on. Places in memory are addresses of contiguous numbers in float32, or narrow
ones in bfloat16. Functions are made when first called, in some seconds, and kept beside this file or in the user's cache folder.

What is in passing is in arrays of the caller's: one that a function makes itself ends as soon as only its address is used.

Shapes:  B sentences   K hypotheses of each   N = B·K rows   H heads   w = d_k or d_v   T = keys of a sentence   D = d_model   F = d_ff
         V target vocabulary   k tokens of each row
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from dragoman.decoding import simd
from dragoman.decoding.simd import (
    LANES,
    at,
    exponential,
    larger,
    largest_of,
    minus,
    multiply,
    narrow_at,
    number_at,
    plus,
    put,
    put_narrow,
    put_number,
    sixteen,
    sum_of,
    times,
    times_plus,
)

Steps = tuple[int, int, int]
"""How many numbers there are from one sentence, head and position to the next."""

_BLOCK = 4 * LANES  # logits of which the largest is kept
_SOURCE = hashlib.sha256(Path(__file__).read_bytes() + Path(simd.__file__).read_bytes()).hexdigest()


def _compiled(source: str) -> Callable[[Any], Any]:
    """Numba's, for this source: it knows a kept function by its file's time, which may be the same for two versions of a package."""

    def compiled(function: Any) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # where no folder to keep it in can be written to
            return njit(**options)(function)

    return compiled


@_compiled(_SOURCE)
def _attend(
    query: int, query_bias: int, query_step: int, keys: int, values: int, steps: tuple[Steps, Steps], mask: int,
    mask_steps: tuple[int, int], sizes: tuple[int, int, int, int, int, int], made: int, scores: int,
) -> None:  # fmt: skip
    """softmax(q Kᵀ / √d_k) V, equation (1), of all heads of queries plus their bias: rows (N, H·d_v), narrow as keys and values are.

    The mask is 0 at what is seen, with steps of sentence and hypothesis; sizes are B, K, H, T, d_k and d_v. There is room for T scores, T
    rounded up to sixteens, and d_k numbers behind them.
    """
    sentences, hypotheses, heads, length, key_size, value_size = sizes
    (key_steps, value_steps), padded = steps, -(-length // LANES) * LANES
    asking, width, scale = scores + 4 * padded, heads * value_size, 1 / math.sqrt(key_size)
    for sentence in range(sentences):
        for head in range(heads):
            key = sentence * key_steps[0] + head * key_steps[1]
            value = sentence * value_steps[0] + head * value_steps[1]
            for hypothesis in range(hypotheses):
                row = sentence * hypotheses + hypothesis
                seen = sentence * mask_steps[0] + hypothesis * mask_steps[1]
                for part in range(0, key_size, LANES):
                    some = at(query, row * query_step + head * key_size + part)
                    put(asking, part, times(plus(some, at(query_bias, head * key_size + part)), sixteen(scale)))
                for place in range(length, padded):
                    put_number(scores, place, -math.inf)
                for place in range(length):
                    if number_at(mask, seen + place) != 0:
                        put_number(scores, place, -math.inf)
                        continue
                    product = sixteen(0.0)
                    for part in range(0, key_size, LANES):
                        product = times_plus(at(asking, part), narrow_at(keys, key + place * key_steps[2] + part), product)
                    put_number(scores, place, sum_of(product))
                most = at(scores, 0)
                for place in range(LANES, length, LANES):
                    most = larger(at(scores, place), most)
                most, total = sixteen(largest_of(most)), sixteen(0.0)
                for place in range(0, length, LANES):
                    weight = exponential(minus(at(scores, place), most))
                    put(scores, place, weight)
                    total = plus(total, weight)
                share = sixteen(1 / sum_of(total))
                for part in range(0, value_size, LANES):
                    result = sixteen(0.0)
                    for place in range(length):
                        if number_at(mask, seen + place) == 0:
                            weight = sixteen(number_at(scores, place))
                            result = times_plus(weight, narrow_at(values, value + place * value_steps[2] + part), result)
                    put_narrow(made, row * width + head * value_size + part, times(result, share))


@_compiled(_SOURCE)
def _keep(made: int, bias: int, step: int, kept: int, steps: Steps, sizes: tuple[int, int, int, int], start: int) -> None:
    """New keys or values (N, H·w), ``step`` numbers apart, plus their bias become those of positions from ``start`` on.

    sizes are B, K, H and w.
    """
    sentences, hypotheses, heads, size = sizes
    for sentence in range(sentences):
        for hypothesis in range(hypotheses):
            row = (sentence * hypotheses + hypothesis) * step
            for head in range(heads):
                place = sentence * steps[0] + head * steps[1] + (start + hypothesis) * steps[2]
                for part in range(0, size, LANES):
                    put_narrow(kept, place + part, plus(at(made, row + head * size + part), at(bias, head * size + part)))


@_compiled(_SOURCE)
def _normalise(x: int, added: int, weight: int, bias: int, epsilon: float, made: int, rows: int, width: int, replace: bool) -> None:
    """LayerNorm(x + ``added``), of x (N, D) and one row unless 0, narrow in ``made`` (N, D) unless 0; x becomes the norm where that is to
    ``replace`` it, and otherwise the sum.
    """
    for row in range(rows):
        first, total = row * width, sixteen(0.0)
        for place in range(0, width, LANES):
            some = at(x, first + place)
            if added != 0:
                some = plus(some, at(added, place))
                put(x, first + place, some)
            total = plus(total, some)
        mean, squares = sixteen(sum_of(total) / width), sixteen(0.0)
        for place in range(0, width, LANES):
            some = minus(at(x, first + place), mean)
            squares = times_plus(some, some, squares)
        inverse = sixteen(1 / math.sqrt(sum_of(squares) / width + epsilon))
        for place in range(0, width, LANES):
            some = times_plus(times(minus(at(x, first + place), mean), inverse), at(weight, place), at(bias, place))
            if replace:
                put(x, first + place, some)
            if made != 0:
                put_narrow(made, first + place, some)


@_compiled(_SOURCE)
def _add(x: int, added: int, rows: int, width: int) -> None:
    """One row (D) is added to x (N, D)."""
    for row in range(rows):
        for place in range(0, width, LANES):
            put(x, row * width + place, plus(at(x, row * width + place), at(added, place)))


@_compiled(_SOURCE)
def _rounded(x: int, bias: int, made: int, rows: int, width: int, relu: bool) -> None:
    """x (N, any) plus a bias unless 0, or max(0, that), narrow in ``made``."""
    for row in range(rows):
        for place in range(0, width, LANES):
            some = at(x, row * width + place)
            if bias != 0:
                some = plus(some, at(bias, place))
            put_narrow(made, row * width + place, larger(some, sixteen(0.0)) if relu else some)


@_compiled(_SOURCE)
def step_layers(
    product: int, x: int, weights: Any, kept: Any, own_steps: tuple[Steps, Steps], memory_steps: tuple[Steps, Steps],
    masks: tuple[int, int], mask_steps: tuple[tuple[int, int], tuple[int, int]],
    sizes: tuple[int, int, int, int, int, int, int], start: int, source: int,
    epsilons: tuple[float, float], pre_norm: bool, wide: Any, narrow: Any, room: Any,
) -> None:  # fmt: skip
    """A step of L decoder layers as in the paper, or with norms before the sub-layers, and a norm behind them: x (N, D), in its place.

    ``product`` is where cblas_gemm_bf16bf16f32 lies. ``weights`` (L + 1, 18) is where each layer has matrix and bias of queries, keys and
    values, of what is behind them, of queries to the source, of what is behind these, and of equation (2), then weight and bias of three
    norms; at last those of the norm behind all, or 0. ``kept`` (L, 4) is where keys and values are, of the target and of the source; new
    ones go to position ``start``, and there are so many of the ``source``. sizes are B, K, H, d_k, d_v, D and F; the second epsilon is that
    of the last norm. ``wide`` has N times the most columns of a product in float32, ``narrow`` N times the most numbers that one takes, and
    ``room`` is what `_attend` needs.
    """
    sentences, hypotheses, heads, key_size, value_size, width, inner = sizes
    rows, keys, values, last = sentences * hypotheses, heads * key_size, heads * value_size, len(kept)
    made, given, scores, (epsilon, final_epsilon) = wide.ctypes.data, narrow.ctypes.data, room.ctypes.data, epsilons
    per_head, own_width = (sentences, hypotheses, heads), 2 * keys + values
    seen, of_source = (*per_head, start + hypotheses, key_size, value_size), (*per_head, source, key_size, value_size)
    if pre_norm:
        _normalise(x, 0, weights[0, 12], weights[0, 13], epsilon, given, rows, width, False)
    else:
        _rounded(x, 0, given, rows, width, False)
    for number in range(last):
        layer, cache, norm = weights[number], kept[number], 14 if pre_norm else 12  # that behind the first sub-layer
        multiply(product, rows, width, own_width, given, layer[0], 0.0, made)
        _keep(made + 4 * keys, layer[1] + 4 * keys, own_width, cache[0], own_steps[0], (*per_head, key_size), start)
        _keep(made + 8 * keys, layer[1] + 8 * keys, own_width, cache[1], own_steps[1], (*per_head, value_size), start)
        _attend(made, layer[1], own_width, cache[0], cache[1], own_steps, masks[0], mask_steps[0], seen, given, scores)
        multiply(product, rows, values, width, given, layer[2], 1.0, x)
        _normalise(x, layer[3], layer[norm], layer[norm + 1], epsilon, given, rows, width, not pre_norm)
        multiply(product, rows, width, keys, given, layer[4], 0.0, made)
        _attend(made, layer[5], keys, cache[2], cache[3], memory_steps, masks[1], mask_steps[1], of_source, given, scores)
        multiply(product, rows, values, width, given, layer[6], 1.0, x)
        _normalise(x, layer[7], layer[norm + 2], layer[norm + 3], epsilon, given, rows, width, not pre_norm)
        multiply(product, rows, width, inner, given, layer[8], 0.0, made)
        _rounded(made, layer[9], given, rows, inner, True)
        multiply(product, rows, inner, width, given, layer[10], 1.0, x)
        if not pre_norm:
            _normalise(x, layer[11], layer[16], layer[17], epsilon, given, rows, width, True)
        elif number + 1 < last:
            _normalise(x, layer[11], weights[number + 1, 12], weights[number + 1, 13], epsilon, given, rows, width, False)
        else:
            _add(x, layer[11], rows, width)
    if weights[last, 0] != 0:
        _normalise(x, 0, weights[last, 0], weights[last, 1], final_epsilon, 0, rows, width, True)


@_compiled(_SOURCE)
def move(numbers: int, origin: Any, place: Any, width: int) -> None:
    """Rows of so many narrow numbers take the places of others, by number."""
    for each in range(len(origin)):
        for part in range(0, width, LANES):
            put_narrow(numbers, place[each] * width + part, narrow_at(numbers, origin[each] * width + part))


@_compiled(_SOURCE)
def _choose(row: Any, largest: Any, blocks: Any, never: Any, log_probs: Any, tokens: Any, vocabulary: int) -> None:
    """The k most probable tokens of a row of V logits, with -∞ behind them up to a whole block; the rest as for `choose`."""
    numbers, number, most = row.ctypes.data, len(tokens), sixteen(-math.inf)
    for block in range(len(largest)):
        place = block * _BLOCK
        some = larger(at(numbers, place), at(numbers, place + LANES))
        some = larger(some, larger(at(numbers, place + 2 * LANES), at(numbers, place + 3 * LANES)))
        most = larger(some, most)
        largest[block] = largest_of(some)
    top = largest_of(most)
    most, total = sixteen(top), sixteen(0.0)
    for place in range(0, len(row), LANES):
        total = plus(total, exponential(minus(at(numbers, place), most)))
    logarithm = math.log(sum_of(total))
    for stretch in range(len(never)):
        low, high = never[stretch, 0], never[stretch, 1]
        row[low : high + 1] = -np.inf
        for block in range(low // _BLOCK, high // _BLOCK + 1):
            largest[block] = row[block * _BLOCK : (block + 1) * _BLOCK].max()
    count = 0  # of blocks, the largest first
    for block in range(len(largest)):
        if count == len(blocks) and not largest[block] > largest[blocks[count - 1]]:
            continue
        count = min(count + 1, len(blocks))
        place = count - 1
        while place > 0 and largest[block] > largest[blocks[place - 1]]:
            blocks[place] = blocks[place - 1]
            place -= 1
        blocks[place] = block
    log_probs[:], tokens[:] = -np.inf, 0
    for block in blocks:
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, vocabulary)):
            value = row[token]
            if not value >= log_probs[number - 1]:
                continue
            place = number
            while place > 0 and (value > log_probs[place - 1] or (value == log_probs[place - 1] and token < tokens[place - 1])):
                place -= 1
                if place + 1 < number:
                    log_probs[place + 1], tokens[place + 1] = log_probs[place], tokens[place]
            if place < number:
                log_probs[place], tokens[place] = value, token
    for place in range(number):
        log_probs[place] = (float(log_probs[place]) - float(top)) - logarithm


@_compiled(_SOURCE)
def choose(
    product: int, hidden: int, matrix: int, bias: int, never: Any, log_probs: Any, tokens: Any, width: int, vocabulary: int, wide: Any
) -> None:
    """The k most probable tokens after hidden states (N, D), narrow, by a matrix (D, V), narrow, and a bias (V) unless 0: log_probs and
    tokens, arrays (N, k), in falling order, a smaller id first of two that are equal.

    ``never``, an array (M, 2), has the first and the last of stretches of ids that may not follow. ``wide`` has room for the logits of some
    rows.
    """
    rows, number = tokens.shape
    row = np.full(-(-vocabulary // _BLOCK) * _BLOCK, -np.inf, np.float32)
    largest = np.empty(len(row) // _BLOCK, np.float32)
    blocks, numbers = np.empty(min(number, len(largest)), np.int64), row.ctypes.data
    logits, whole, together = wide.ctypes.data, vocabulary // LANES * LANES, len(wide) // vocabulary
    for first in range(0, rows, together):
        some = min(together, rows - first)
        multiply(product, some, width, vocabulary, hidden + 2 * first * width, matrix, 0.0, logits)
        for each in range(some):
            for place in range(0, whole, LANES):
                values = at(logits, each * vocabulary + place)
                put(numbers, place, plus(values, at(bias, place)) if bias != 0 else values)
            for place in range(whole, vocabulary):
                value = number_at(logits, each * vocabulary + place)
                row[place] = value + number_at(bias, place) if bias != 0 else value
            _choose(row, largest, blocks, never, log_probs[first + each], tokens[first + each], vocabulary)
