"""Beam search."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention.state import Rows, State
from longspan.decode import Beam, Ensemble, beam_search, generate, score
from longspan.decode.beam import coverage_penalty, length_penalty
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import CausalModel
from longspan.models.decoder import Decoder
from longspan.models.transformer import Transformer

TINY = {"vocabulary": 9, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 64}
END = 0
SOURCES = [[3, 4, 5, 6, 7], [8, 2], [5, 5, 5]]


def exhaustive(model: CausalModel, prompt: list[int], longest: int, options: Beam) -> tuple[list[int], float]:
    """The best of all texts that end in time."""
    others = [token for token in range(model.vocabulary) if token != END]
    texts = [[*body, END] for size in range(longest) for body in itertools.product(others, repeat=size)]
    sums = [float(row.sum()) for row in score(model, [prompt] * len(texts), texts)]
    scores = [s / float(length_penalty(torch.tensor(len(t)), options)) for s, t in zip(sums, texts)]
    where = max(range(len(texts)), key=scores.__getitem__)
    return texts[where], scores[where]


@pytest.mark.parametrize("penalty", [{"alpha": 0.0}, {"alpha": 0.6}, {"length_penalty": "power", "alpha": 1.0}])
@pytest.mark.parametrize("seed", range(3))
def test_enough_beams_are_an_exhaustive_search(table: Any, penalty: dict[str, Any], seed: int):
    model = table(vocabulary=4, seed=seed)
    options = Beam(beams=4**5, max_new=5, exhaustive=True, **penalty)
    ((found,),) = beam_search(model, [[1]], options=options, eos=END)
    text, value = exhaustive(model, [1], 5, options)
    assert found.tokens == text and found.score == pytest.approx(value, abs=1e-12) and found.finished


@given(st.integers(0, 10_000), st.integers(2, 3), st.integers(1, 4), st.sampled_from([0.0, 0.6, 2.0]))
def test_no_small_model_has_a_better_text(table: Any, seed: int, vocabulary: int, longest: int, alpha: float):
    model = table(vocabulary=vocabulary, seed=seed)
    options = Beam(beams=vocabulary**longest, max_new=longest, alpha=alpha, exhaustive=True)
    ((found,),) = beam_search(model, [[1]], options=options, eos=END)
    text, value = exhaustive(model, [1], longest, options)
    assert found.score == pytest.approx(value, abs=1e-9) and found.tokens == text


@given(st.integers(0, 10_000), st.integers(2, 4), st.sampled_from([0.0, 0.6, 2.0]))
def test_the_stop_rule_loses_nothing(table: Any, seed: int, beams: int, alpha: float):
    """What is found does not change when the search may never stop early, and equals a search written as a loop."""
    model = table(vocabulary=5, seed=seed)
    options = Beam(beams=beams, n_best=beams, max_new=6, alpha=alpha)
    (found,) = beam_search(model, [[1]], options=options, eos=END)
    expected = plain_search(model, [1], options)
    ended = [(h.tokens, pytest.approx(h.score, abs=1e-9)) for h in found if h.finished]
    assert [(text, value) for text, value in expected[:beams]] == ended


def plain_search(model: CausalModel, prompt: list[int], options: Beam) -> list[tuple[list[int], float]]:
    """Section 11 without tensors, without a cache and without an early stop."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for size in range(1, (options.max_new or 0) + 1):
        candidates = []
        for total, text in live:
            logits, _ = model.extend(torch.tensor([prompt + text]), model.start(1), last=True)
            logprobs = logits[0, -1].log_softmax(0).tolist()
            candidates += [(total + value, [*text, token]) for token, value in enumerate(logprobs)]
        candidates = sorted(candidates, key=lambda pair: -pair[0])[: 2 * options.beams]
        penalty = float(length_penalty(torch.tensor(size), options))
        finished += [(total / penalty, text) for total, text in candidates[: options.beams] if text[-1] == END]
        live = [(total, text) for total, text in candidates if text[-1] != END][: options.beams]
    return [(text, value) for value, text in sorted(finished, key=lambda pair: -pair[0])]


def test_the_length_penalty():
    options = Beam(alpha=0.6)
    lengths = torch.tensor([1, 4, 8, 10, 20, 50])
    expected = torch.tensor([1.0, 1.2754, 1.5903, 1.7329, 2.3544, 3.7786]).double()
    torch.testing.assert_close(length_penalty(lengths, options), expected, rtol=0, atol=5e-5)
    short, long = -4.0 / length_penalty(lengths[1], options), -4.8 / length_penalty(lengths[2], options)
    assert short.item() == pytest.approx(-3.1362, abs=1e-4) and long.item() == pytest.approx(-3.0183, abs=1e-4)
    assert length_penalty(lengths, Beam(length_penalty="power", alpha=1.0)).tolist() == lengths.tolist()
    assert length_penalty(lengths, Beam(length_penalty="none")).tolist() == [1.0] * 6


def test_alpha_prefers_the_longer_text(table: Any):
    """Three tokens: end, go on, and one that is never wise. Ending costs 1.0 at once, or 1.2 after seven tokens."""
    logits = torch.full((3, 3, 3), -50.0).double()
    logits[:, 1] = torch.tensor([-1.0, -0.2, -50.0])
    model = table(logits)
    for alpha, penalty in ((0.0, "none"), (2.0, "gnmt")):
        options = Beam(beams=2, max_new=8, length_penalty=penalty, alpha=alpha)
        ((found,),) = beam_search(model, [[1]], options=options, eos=END)
        assert len(found.tokens) == (1 if alpha == 0 else 8)


def test_the_coverage_penalty():
    covered = torch.tensor([1.2, 0.5, 0.1]).double()
    assert float(coverage_penalty(covered, 0.2)) == pytest.approx(-0.599146, abs=1e-6)
    padded = torch.tensor([1.2, 0.5, 0.1, 0.0]).double()
    mask = torch.tensor([True, True, True, False])
    assert float(coverage_penalty(padded, 0.2, mask)) == pytest.approx(-0.599146, abs=1e-6)
    assert float(coverage_penalty(padded, 0.2)) == pytest.approx(-0.599146 - 0.2 * 23.02585, abs=1e-4)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.6]))
def test_one_beam_is_greedy(table: Any, seed: int, alpha: float):
    model = table(vocabulary=5, seed=seed)
    prompts = [[1], [2, 3], [4]]
    found = beam_search(model, prompts, options=Beam(beams=1, max_new=7, alpha=alpha), eos=END)
    greedy = generate(model, prompts, max_new=7, eos=END)
    assert [row[0].tokens for row in found] == greedy.tokens
    assert [row[0].finished for row in found] == [reason == "end" for reason in greedy.reasons]
    for row, logprobs in zip(found, greedy.logprobs):
        assert row[0].logprobs == pytest.approx(logprobs, abs=1e-12)


def test_two_beams_find_what_greedy_misses(table: Any):
    logits = torch.full((4, 4, 4), -50.0).double()
    logits[:, 3] = torch.tensor([0.01, 0.55, 0.44, 1e-9]).log()  # 1 looks better,
    logits[:, 1] = torch.tensor([0.30, 0.24, 0.23, 0.23]).log()  # but nothing good follows,
    logits[:, 2] = torch.tensor([0.97, 0.01, 0.01, 0.01]).log()  # and 2 ends well
    model = table(logits)
    assert generate(model, [[3]], max_new=2, eos=END).tokens == [[1, END]]
    ((found,),) = beam_search(model, [[3]], options=Beam(beams=2, max_new=2), eos=END)
    assert found.tokens == [2, END] and found.logprob == pytest.approx(float(torch.tensor(0.44 * 0.97).log()), abs=1e-6)


def models() -> dict[str, CausalModel]:
    torch.manual_seed(0)
    settings = ["softmax", {"name": "sparse", "stride": 3}]
    return {
        "left padding": Decoder.build(**TINY).double(),
        "lock-step": Decoder.build(**TINY, attention=settings).double(),
        "constant state": Decoder.build(**TINY, attention="linear").double(),
    }


@pytest.mark.parametrize("kind", models())
@pytest.mark.parametrize("extra", [{}, {"no_repeat_ngram": 2}, {"min_new": 3, "prefix": (4,)}])
def test_a_batch_gives_what_each_prompt_gives_alone(kind: str, extra: dict[str, Any]):
    model, prompts = models()[kind], [[1], [2, 3, 4, 5], [6, 7], [1, 1, 1, 1, 1, 1]]
    options = Beam(beams=3, n_best=3, max_new=8, **extra)
    together = beam_search(model, prompts, options=options, eos=END)
    for prompt, found in zip(prompts, together, strict=True):
        (alone,) = beam_search(model, [prompt], options=options, eos=END)
        assert [h.tokens for h in found] == [h.tokens for h in alone] and len(found) == 3
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-9)
        assert [h.finished for h in found] == [h.finished for h in alone]
        for hypothesis in found:
            (expected,) = score(model, [prompt], [hypothesis.tokens])
            assert hypothesis.logprobs == pytest.approx(expected.tolist(), abs=1e-9)
            if "prefix" in extra:
                assert hypothesis.tokens[0] == 4 and END not in hypothesis.tokens[:3]
            if "no_repeat_ngram" in extra:
                pairs = list(itertools.pairwise(prompt + hypothesis.tokens))
                assert len(set(pairs[len(prompt) - 1 :])) == len(pairs[len(prompt) - 1 :])


@pytest.mark.parametrize("beta", [0.0, 0.4])
@pytest.mark.parametrize("prompts", [[[1]] * 3, [[1, 2], [1, 7, 7, 4], [1]]])
@pytest.mark.parametrize("attention", ["softmax", {"name": "sparse", "stride": 3}])
def test_a_batch_of_sources_gives_what_each_gives_alone(beta: float, prompts: list[list[int]], attention: Any):
    model = Transformer.build(**TINY, decoder_attention=attention).double()
    options = Beam(beams=4, n_best=2, extra=4, beta=beta)
    together = beam_search(model, prompts, source=SOURCES, eos=END, options=options)
    for prompt, source, found in zip(prompts, SOURCES, together, strict=True):
        (alone,) = beam_search(model, [prompt], source=[source], eos=END, options=options)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-9)
        assert max(len(h.tokens) for h in found) <= len(source) + 4


def test_rows_that_padding_would_push_out_of_the_model_go_in_lock_step():
    """With 8 tokens of padding the second row could make 3 new ones only, and alone it makes 11."""
    torch.manual_seed(0)
    model = Transformer.build(**{**TINY, "max_length": 12}).double()
    assert model.left_padding
    prompts, sources = [[1, 2, 3, 4, 5, 6, 7, 8, 1], [1]], SOURCES[:2]
    together = beam_search(model, prompts, source=sources, options=Beam(n_best=2))
    for prompt, source, found in zip(prompts, sources, together, strict=True):
        (alone,) = beam_search(model, [prompt], source=[source], options=Beam(n_best=2))
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [len(h.tokens) for h in found] == [12 - len(prompt)] * 2


def test_coverage_is_what_the_steps_of_the_text_have_read():
    model = Transformer.build(**TINY).double().eval()
    options = Beam(beams=3, n_best=3, max_new=5, beta=0.4)
    (found,) = beam_search(model, [[1, 4, 2]], source=SOURCES[:1], eos=END, options=options)
    for hypothesis in found:
        state = model.start(1, source=torch.tensor(SOURCES[:1]), align=True)
        _, state = model.extend(torch.tensor([[1, 4, 2, *hypothesis.tokens[:-1]]]), state)
        covered = state.alignment[0, 2:].sum(0)
        expected = hypothesis.logprob / length_penalty(torch.tensor(len(hypothesis.tokens)), options)
        expected = expected + coverage_penalty(covered, 0.4)
        assert hypothesis.score == pytest.approx(float(expected), abs=1e-9)


@dataclass(frozen=True)
class Read(State):
    rows: Rows


class Uncached(CausalModel):
    """The same model without a cache: it reads the whole text at each step."""

    name, paper = "uncached", "none"

    def __init__(self, inner: CausalModel) -> None:
        super().__init__(None)
        self.inner, self.vocabulary = inner, inner.vocabulary

    def start(self, batch: int, **_: Any) -> Read:
        return Read(Rows.empty(batch))

    def extend(self, ids: Tensor, state: Read, *, last: bool = False, **_: Any) -> tuple[Tensor, Read]:
        rows = state.rows.append(ids[:, None, :, None])
        logits = self.inner(rows.value[:, 0, :, 0])[:, -ids.shape[1] :]
        return logits[:, -1:] if last else logits, Read(rows)


@pytest.mark.parametrize("kind", models())
def test_a_search_with_and_without_cache(kind: str):
    model, prompts = models()[kind].eval(), [[1], [2, 3, 4, 5], [6, 7]]
    options = Beam(beams=4, n_best=4, max_new=7)
    cached = beam_search(model, prompts, options=options, eos=END)
    uncached = beam_search(Uncached(model), prompts, options=options, eos=END)
    for one, other in zip(cached, uncached, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-9)


def test_where_nothing_ends_the_best_live_one_is_given(table: Any):
    model = table(vocabulary=5)
    ((found,),) = beam_search(model, [[1]], options=Beam(beams=3, max_new=4))
    assert len(found.tokens) == 4 and not found.finished
    best = max(itertools.product(range(5), repeat=4), key=lambda t: float(score(model, [[1]], [t])[0].sum()))
    ((wide,),) = beam_search(model, [[1]], options=Beam(beams=125, max_new=4, exhaustive=True))
    assert tuple(wide.tokens) == best


def test_several_ends(table: Any):
    model = table(vocabulary=5)
    (found,) = beam_search(model, [[1]], options=Beam(beams=4, n_best=4, max_new=6), eos=[0, 3])
    assert all(h.tokens[-1] in (0, 3) and not {0, 3} & set(h.tokens[:-1]) for h in found if h.finished)


@pytest.mark.parametrize("average", ["log", "probability"])
def test_an_ensemble(table: Any, average: str):
    first, second = table(vocabulary=5, seed=1), table(vocabulary=5, seed=2)
    pair = Ensemble([first, second], average=average)
    logits, _ = pair.extend(torch.tensor([[1, 2]]), pair.start(1))
    own = [m.extend(torch.tensor([[1, 2]]), m.start(1))[0].log_softmax(-1) for m in (first, second)]
    mean = (own[0] + own[1]) / 2 if average == "log" else (own[0].exp() + own[1].exp()).log()
    torch.testing.assert_close(logits.log_softmax(-1), mean.log_softmax(-1))
    options = Beam(beams=5**3, max_new=3, exhaustive=True)
    ((found,),) = beam_search(pair, [[1]], options=options, eos=END)
    assert found.tokens == exhaustive(pair, [1], 3, options)[0]
    ((same,),) = beam_search(Ensemble([first, first]), [[1]], options=options, eos=END)
    assert same.tokens == beam_search(first, [[1]], options=options, eos=END)[0][0].tokens
    with pytest.raises(InvalidInput, match=r"must have the same vocabulary, not \[5, 4\]"):
        Ensemble([first, table(vocabulary=4)])
    with pytest.raises(Unsupported, match="save its members"):
        pair.save("nowhere")


def test_an_ensemble_of_encoder_decoders_has_an_alignment():
    torch.manual_seed(0)
    pair = Ensemble([Transformer.build(**TINY).double() for _ in range(2)])
    found = beam_search(pair, source=SOURCES, bos=1, eos=END, options=Beam(extra=2, beta=0.2))
    assert len(found) == 3 and all(row[0].score < row[0].logprob for row in found if len(row[0].tokens) == 1)


def test_refusals(table: Any):
    model = table(vocabulary=5)
    with pytest.raises(InvalidOption, match=r"^6 beams are more than the vocabulary of 5; give fewer, or exhaustive"):
        beam_search(model, [[1]], options=Beam(beams=6, max_new=3))
    with pytest.raises(InvalidOption, match="n_best 5 is more than the 4 beams"):
        Beam(n_best=5)
    with pytest.raises(InvalidOption, match="min_new 5 is more than max_new 4"):
        Beam(min_new=5, max_new=4)
    with pytest.raises(InvalidOption, match="option length_penalty must be one of gnmt, power, none"):
        Beam(length_penalty="google")
    with pytest.raises(InvalidInput, match=r"give the maximum length: Beam\(max_new="):
        beam_search(model, [[1]])
    with pytest.raises(Unsupported, match="table reads no source, so there is no coverage"):
        beam_search(model, [[1]], options=Beam(max_new=3, beta=0.2))
    with pytest.raises(InvalidInput, match="prefix 0 has the id 7 at position 1"):
        beam_search(model, [[1]], options=Beam(max_new=3, prefix=(1, 7)))
    with pytest.raises(InvalidInput, match="all 5 ids are end tokens"):
        beam_search(model, [[1]], options=Beam(max_new=3), eos=range(5))
