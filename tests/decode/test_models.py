"""Every causal model decodes: unequal prompts together, in beams and as a stream, as each of them alone."""

from typing import Any

import pytest
import torch

from longspan.decode import Beam, Sampling, beam_search, generate, score, stream
from longspan.models import CausalModel, build, find, names

BODY = {"vocabulary": 13, "width": 16, "heads": 2, "hidden": 24, "layers": 2}
MEMORY = {**BODY, "segment": 4, "memory": 5}
SMALL: dict[str, list[dict[str, Any]]] = {
    "decoder": [BODY, {**BODY, "attention": "reformer", "reversible": True, "norm_position": "pre", "tied": False}],
    "transformer": [BODY, {**BODY, "cross_attention": "linear"}],
    "universal": [{**BODY, "halting": True}],
    "universal_decoder": [BODY, {**BODY, "halting": True, "halted": "copy"}],
    "transformer_xl": [MEMORY, {**MEMORY, "same_length": True}],
    "compressive": [{**MEMORY, "slots": 3, "ratio": 2}],
    "recurrent": [
        {"vocabulary": 13, "width": 8, "embedding": 8, "layers": 2, "cell": cell} for cell in ("lstm", "gru")
    ],
    "seq2seq": [
        {"vocabulary": 13, "width": 8, "embedding": 8, "layers": 1, "decoder": decoder}
        for decoder in ("plain", "bahdanau", "luong")
    ],
}
CASES = [(name, index) for name, options in SMALL.items() for index in range(len(options))]
PROMPTS = [[5, 3, 8, 1, 9, 2, 7], [4], [6, 6, 1, 12]]
SOURCES = [[3, 4, 5, 6], [7, 8], [9, 10, 11, 3, 4, 2]]


def make(name: str, index: int) -> CausalModel:
    torch.manual_seed(1)
    model = build(name, **SMALL[name][index]).double().eval()
    assert isinstance(model, CausalModel)
    with torch.no_grad():  # sharper than it starts, so that the choices differ
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def test_no_causal_model_is_left_out():
    assert [name for name in names() if issubclass(find(name), CausalModel) and name not in SMALL] == []


def given(model: CausalModel, row: int | None = None) -> dict[str, Any]:
    rows = range(len(PROMPTS)) if row is None else [row]
    sources = {"source": [SOURCES[i] for i in rows]} if model.reads_source else {}
    return {"prompts": [PROMPTS[i] for i in rows], **sources}


@pytest.mark.parametrize(("name", "index"), CASES)
def test_together_as_alone(name: str, index: int):
    model = make(name, index)
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=2)
    together = generate(model, **given(model), max_new=9, sampling=sampling, eos=0)
    for row in range(len(PROMPTS)):
        alone = generate(model, **given(model, row), max_new=9, sampling=sampling, eos=0)
        assert alone.tokens == [together.tokens[row]] and alone.reasons == [together.reasons[row]]
        torch.testing.assert_close(alone.logprobs[0], together.logprobs[row], rtol=0, atol=1e-9)
    assert together.state_bytes > 0


@pytest.mark.parametrize(("name", "index"), CASES)
def test_beams_scores_and_streams(name: str, index: int):
    model = make(name, index)
    options = Beam(beams=3, max_new=6, n_best=2)
    together = beam_search(model, **given(model), options=options, eos=0)
    for row in range(len(PROMPTS)):
        (alone,) = beam_search(model, **given(model, row), options=options, eos=0)
        assert [found.tokens for found in alone] == [found.tokens for found in together[row]]
    greedy = generate(model, **given(model), max_new=6)
    known = given(model)
    logprobs = score(model, known.pop("prompts"), greedy.tokens, **known)
    for mine, theirs in zip(logprobs, greedy.logprobs):
        torch.testing.assert_close(mine, torch.tensor(theirs, dtype=mine.dtype), rtol=0, atol=1e-9)
    source = {"source": SOURCES[0]} if model.reads_source else {}
    assert [piece.token for piece in stream(model, PROMPTS[0], max_new=6, **source)] == greedy.tokens[0]
