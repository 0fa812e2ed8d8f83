"""The walk through the paper: twenty steps, each with its section, its equation and this sentence's numbers, computed twice."""

from collections.abc import Sequence
from dataclasses import replace

from dragoman.explain import walk_attention, walk_input, walk_layer, walk_output
from dragoman.explain.answer import Explanation
from dragoman.explain.computations import computations
from dragoman.explain.steps import Focus, Step
from dragoman.training.charts import Point


def walk(found: Explanation, focus: Focus, *, rates: Sequence[Point] = ()) -> list[Step]:
    """The steps, by their numbers, that this kind of model has. ``rates`` are (step, learning rate) of the run, for its curve.

    Steps 2 to 12 follow the token of the text through the encoder, steps 13 to 16 the token of the translation through the decoder; in a
    model of one text all follow its token through the one stack.
    """
    stack = found.kinds[0]
    steps = [
        walk_input.tokens(found, focus, stack),
        walk_input.embedding(found, focus, stack),
        walk_input.positions(found, focus, stack),
        walk_attention.projections(found, focus, stack),
        walk_attention.scores(found, focus, stack),
        walk_attention.mask(found, focus, stack),
        walk_attention.softmax(found, focus, stack),
        walk_attention.weighted_sum(found, focus, stack),
        walk_attention.concatenation(found, focus, stack),
        walk_layer.residual(found, focus, stack),
        walk_layer.feed_forward(found, focus, stack),
        walk_layer.stack_of_layers(found, focus, stack),
    ]
    if "decoder" in found.kinds:
        steps.append(walk_attention.masked_self_attention(found, focus))
    if "cross" in found.kinds:
        steps.append(walk_attention.cross_attention(found, focus))
    steps += [
        walk_output.projection(found, focus),
        walk_output.vocabulary_softmax(found, focus),
        *([] if found.beams is None else [walk_output.beam_search(found, found.beams)]),
        walk_output.label_smoothing(found, focus),
        walk_output.learning_rate(found, rates),
        walk_output.regularisation(found, focus, stack),
    ]
    return [replace(step, again=computations(step, found, focus)) for step in steps]
