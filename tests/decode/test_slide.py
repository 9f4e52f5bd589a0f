"""Texts that outgrow the model: the window slides over tables, and the state goes on where there are none."""

from typing import Any

import pytest
import torch

from longspan.decode import Beam, Ensemble, Sampling, beam_search, generate, stream
from longspan.errors import InvalidInput
from longspan.models.decoder import Decoder
from longspan.models.transformer import Transformer

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 8}
TABLES = [
    {"position": "learned"},
    {"position": "axial", "axes": [2, 4], "axis_widths": [8, 8]},
    {"attention": "cosformer"},
    {"attention": "synthesizer", "position": "none"},
    {"attention": {"name": "sinkhorn", "block": 4}},
    {"attention": {"name": "softmax", "score": "location"}},
]
FREE = [
    {"position": "rotary"},
    {"position": "alibi"},
    {"position": "relative"},
    {"position": "sinusoidal"},
    {"attention": "linear"},
    {"attention": {"name": "window", "window": 3}, "position": "rotary"},
]


def built(**options: Any) -> Decoder:
    torch.manual_seed(3)
    return Decoder.build(**{**TINY, **options}).double().eval()


def windowed(model: Decoder, prompt: list[int], new: int) -> list[int]:
    """Greedy by the definition: each new token follows from the last `max_length` tokens, read from the beginning."""
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(new):
            text.append(int(model(torch.tensor([text[-8:]]))[0, -1].argmax()))
    return text[len(prompt) :]


PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [2] * 8]


@pytest.mark.parametrize("options", TABLES, ids=str)
def test_a_table_is_slid_over_and_rows_are_as_if_alone(options: dict[str, Any]):
    model = built(**options)
    assert model.fixed_length
    expected = [windowed(model, prompt, 20) for prompt in PROMPTS]
    assert generate(model, PROMPTS, max_new=20, slide=True).tokens == expected
    pieces = list(stream(model, PROMPTS[0], max_new=20, slide=True))
    assert [piece.token for piece in pieces] == expected[0] and pieces[-1].reason == "length"
    found = beam_search(model, PROMPTS, options=Beam(beams=1, max_new=20), slide=True)
    assert [hypotheses[0].tokens for hypotheses in found] == expected


def test_beams_over_a_table_are_as_if_alone_and_have_the_windows_probabilities():
    model = built(position="learned")
    options = Beam(beams=3, n_best=3, max_new=12)
    together = beam_search(model, PROMPTS, options=options, slide=True)
    for prompt, hypotheses in zip(PROMPTS, together):
        alone = beam_search(model, [prompt], options=options, slide=True)[0]
        assert [each.tokens for each in alone] == [each.tokens for each in hypotheses]
        for each in hypotheses:
            text = [*prompt, *each.tokens]
            for place, logprob in enumerate(each.logprobs, start=len(prompt)):
                with torch.inference_mode():
                    logits = model(torch.tensor([text[max(0, place - 8) : place]]))[0, -1]
                assert logprob == pytest.approx(float(logits.log_softmax(0)[text[place]]), abs=1e-12)


@pytest.mark.parametrize("options", FREE, ids=str)
def test_without_a_table_the_state_goes_on(options: dict[str, Any]):
    model, free = built(**options), built(**options, max_length=None)
    free.load_state_dict(model.state_dict())
    assert not model.fixed_length
    prompts = [*PROMPTS, [3] * 13]
    expected = generate(free, prompts, max_new=20)
    assert generate(model, prompts, max_new=20, slide=True).tokens == expected.tokens
    pieces = stream(model, prompts[3], max_new=20, slide=True)
    assert [piece.token for piece in pieces] == expected.tokens[3]
    beam = Beam(beams=2, max_new=20)
    assert beam_search(model, prompts, options=beam, slide=True) == beam_search(free, prompts, options=beam)


def test_draws_slide_as_well():
    model = built(position="learned")
    sampling = Sampling(samples=2, seed=5)
    both = generate(model, PROMPTS, max_new=15, sampling=sampling, slide=True)
    alone = generate(model, PROMPTS[1:2], max_new=15, sampling=sampling, slide=True)
    assert both.tokens[2:4] == alone.tokens and both.tokens[2] != both.tokens[3]


def test_an_ensemble_slides_by_its_shortest_member():
    first, second = built(position="learned"), built(position="rotary")
    pair = Ensemble([first, second])
    text = list(PROMPTS[0])
    with torch.inference_mode():
        for _ in range(10):
            ids = torch.tensor([text[-8:]])
            text.append(int((first(ids)[0, -1].log_softmax(0) + second(ids)[0, -1].log_softmax(0)).argmax()))
    assert generate(pair, PROMPTS[:1], max_new=10, slide=True).tokens == [text[3:]]
    free = Ensemble([second, second])
    expected = generate(second, PROMPTS[:1], max_new=10, slide=True).tokens
    assert generate(free, PROMPTS[:1], max_new=10, slide=True).tokens == expected


def test_what_does_not_slide():
    model = built(position="learned")
    with pytest.raises(
        InvalidInput, match=r"^7 tokens of prompt and 2 new ones are more than the 8 that this decoder "
    ):
        generate(model, PROMPTS[1:2], max_new=2)
    with pytest.raises(InvalidInput, match=r"give max_new=1 or a shorter prompt, or slide=True$"):
        beam_search(model, PROMPTS[1:2], options=Beam(max_new=2))
    with pytest.raises(InvalidInput, match="the longest prompt has 9 tokens, and this decoder holds at most 8"):
        generate(model, [[1] * 9], max_new=2, slide=True)
    both = Transformer.build(**{**TINY, "position": "rotary"})
    with pytest.raises(InvalidInput, match="1 tokens of prompt and 9 new ones are more than the 8 that this transfo"):
        generate(both, source=[[1, 2]], bos=1, max_new=9, slide=True)
    _, state = built(position="rotary").extend(torch.ones(1, 8, dtype=torch.long), built(position="rotary").start(1))
    with pytest.raises(InvalidInput, match="holds at most 8 tokens, and 9 were given"):
        built(position="rotary").extend(torch.ones(1, 1, dtype=torch.long), state)
