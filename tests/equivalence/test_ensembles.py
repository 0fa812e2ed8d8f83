"""Ensembles: the mean of the members' probabilities, in search and in scores, and vocabularies that must be one."""

import math

import pytest
import torch

from dragoman.data.tokenizer import Tokenizer
from dragoman.decoding.ensemble import EnsembleStep, mean_log_prob
from dragoman.decoding.translate import Translator
from dragoman.errors import DragomanError
from small_bundles import WORDS, fx_rand, make_bundle, random_sentences
from step_models import BOS, END, RandomTree, every_sequence


class Mean(RandomTree):
    """The mean of random trees."""

    def __init__(self, members: list[RandomTree]) -> None:
        super().__init__(members[0].vocabulary, seed=0)
        self.members = members

    def distribution(self, prefix: tuple[int, ...]):  # type: ignore[no-untyped-def]
        return sum(member.distribution(prefix) for member in self.members) / len(self.members)


def test_an_ensemble_searches_the_mean_of_the_probabilities() -> None:
    from dragoman.decoding.beam import beam_search

    for seed in range(6):
        members = [RandomTree(4, seed=seed), RandomTree(4, seed=seed + 100, temperature=0.3), RandomTree(4, seed=seed + 200)]
        source = torch.tensor([[0], [1]])
        found = beam_search(
            EnsembleStep(members), source, source >= 0, bos=BOS, eos=END, banned=(BOS,), beam=256, n_best=20, alpha=0.6, max_lengths=[4, 3]
        )
        for sentence, limit in enumerate((4, 3)):
            expected = every_sequence(Mean(members), sentence, limit=limit, alpha=0.6)[:20]
            assert [each.tokens for each in found[sentence]] == [tokens for tokens, _ in expected]
            assert [each.score for each in found[sentence]] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_the_mean_is_of_probabilities_and_survives_an_impossible_token() -> None:
    logs = [torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.1, 0.9, 0.0]).log()]
    mean = mean_log_prob(logs).exp().tolist()
    assert mean == pytest.approx([0.3, 0.7, 0.0])
    assert mean_log_prob(logs[:1]) is logs[0]


def test_an_ensemble_of_one_model_twice_is_the_model_and_scores_are_those_of_search() -> None:
    first, second = fx_rand(seed=2), fx_rand(seed=5)
    texts = random_sentences(12, seed=3)
    alone, twice = Translator(first), Translator(first, ensemble={"again": first})
    for one, other in zip(alone.translate(texts, n_best=3), twice.translate(texts, n_best=3), strict=True):
        assert one.text == other.text
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-5)
    both = Translator(first, ensemble={"other": second})
    found = both.translate(texts)
    assert [each.text for each in found] != [each.text for each in alone.translate(texts)]
    targets = [each.text for each in found]
    members = zip(alone.score(texts, targets), Translator(second).score(texts, targets), strict=True)
    for translation, scored, (one, two) in zip(found, both.score(texts, targets), members, strict=True):
        assert scored.token_scores == pytest.approx(translation.token_scores, abs=1e-4)
        means = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in zip(one.token_scores, two.token_scores, strict=True)]
        assert scored.token_scores == pytest.approx(means, abs=1e-4)


def test_members_are_left_in_the_mode_they_had_and_the_shorter_limit_holds() -> None:
    first, second = fx_rand(seed=2, dropout=0.5), fx_rand(seed=5, dropout=0.5, max_positions=6)
    first.model.eval()
    second.model.train()
    translator = Translator(first, ensemble={"other": second})
    assert translator.translate(["ona"]) == translator.translate(["ona"])
    assert second.model.training
    assert not first.model.training
    assert len(translator.translate(["ona bek rem sova"])[0].tokens) <= 6
    with pytest.raises(DragomanError, match="pair 2 has 7 tokens on its longer side and the model takes 6"):
        translator.score(["ona", "bek"], ["ona", "ona bek rem ona bek rem"])


def test_output_layers_of_unequal_size_are_refused() -> None:
    first, padded = fx_rand(seed=2), fx_rand(seed=5, target_vocabulary=20)
    with pytest.raises(DragomanError, match=r"padded: cannot work together with .*: its output layer has 20 rows, not 16"):
        Translator(first, ensemble={"padded": padded})


def test_another_vocabulary_is_refused_with_the_reason() -> None:
    first = fx_rand(seed=2)
    fewer = Tokenizer.train([" ".join(WORDS[:11])], kind="whitespace", vocabulary_size=15)
    other = Tokenizer.train([" ".join(WORDS[1:13])], kind="whitespace", vocabulary_size=16)
    cut = Tokenizer.train([" ".join(WORDS[:12])], kind="whitespace", vocabulary_size=16, normalization="nfc")
    own, new = first.source_tokenizer, fewer
    for name, source, target, reason in [
        ("fewer", fewer, fewer, "the source vocabulary is another (15 entries, not 16)"),
        ("other", other, other, "the source vocabulary is another (entry "),
        ("target", own, new, "the target vocabulary is another (15 entries, not 16)"),
        ("cut", cut, cut, "the same entries, but text is cut or normalised in another way"),
    ]:
        with pytest.raises(DragomanError) as refused:
            Translator(first, ensemble={name: make_bundle(source, target, tie="none")})
        assert str(refused.value).startswith(f"{name}: cannot work together with the first model")
        assert reason in str(refused.value)
