"""A generated text, step by step: against `decode.generate`, the parallel map, and plain forward passes."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.models.every import of_kind

from longspan import decode
from longspan.decode import GREEDY, Sampling
from longspan.errors import InvalidInput, InvalidOption
from longspan.inspect import maps
from longspan.models.base import Model
from longspan.nn.recorder import recording

PROMPT = [1, 5, 9, 2, 7]
DRAWN = [
    Sampling(temperature=0.7, seed=4),
    Sampling(temperature=1.3, top_k=4, seed=1),
    Sampling(temperature=1.0, top_p=0.6, seed=2),
    Sampling(temperature=1.0, top_k=6, top_p=0.9, min_p=0.3, seed=3),
]


@pytest.fixture(scope="module")
def model() -> Model:
    return of_kind("decoder").eval()


@pytest.mark.parametrize("sampling", [GREEDY, *DRAWN])
def test_the_same_tokens_as_generate(model: Model, sampling: Sampling):
    made = maps(model, PROMPT, generate=8, sampling=sampling).record.generated
    assert made is not None
    expected = decode.generate(model, [PROMPT], max_new=8, sampling=sampling)
    assert [step.id for step in made.steps] == expected.tokens[0]
    chosen = [next(c for c in step.choices if c.id == step.id) for step in made.steps]
    np.testing.assert_allclose(np.log([c.probability for c in chosen]), expected.logprobs[0], atol=1e-5)
    assert made.prompt == 5 and made.stopped == "length"
    assert made.settings["temperature"] == sampling.temperature and made.settings["seed"] == sampling.seed


@pytest.mark.parametrize("sampling", DRAWN)
def test_each_draw_can_be_repeated_by_hand(model: Model, sampling: Sampling):
    """Each probability, what was cut and the draw, from a plain forward pass over the text so far."""
    record = maps(model, PROMPT, generate=4, sampling=sampling).record
    assert record.generated is not None
    ids = record.axes["text"].ids.tolist()
    for step in record.generated.steps:
        with torch.no_grad():
            logits = model(torch.tensor([ids[: step.position]]))[0, -1].double()
        shown = {choice.id: choice for choice in step.choices}
        for number, choice in shown.items():
            assert choice.probability == pytest.approx(float(logits.softmax(0)[number]), abs=1e-6)
        assert [choice.id for choice in step.choices[:10]] == logits.topk(10).indices.tolist()
        chances = np.array([shown[number].chance if number in shown else 0 for number in range(11)])
        assert (chances > 0).sum() <= step.kept
        assert all(bool(choice.cut) == (choice.chance == 0) for choice in step.choices)
        assert step.draw is not None and 0 <= step.draw < 1
        if step.kept <= 10:  # all that were left are shown
            assert chances.sum() == pytest.approx(1)
            assert int(np.searchsorted(chances.cumsum(), step.draw, side="right")) == step.id


def test_what_each_step_read_is_a_row_of_the_parallel_map(model: Model):
    seen = maps(model, PROMPT, generate=4)
    record = seen.record
    ids = record.axes["text"].ids.tolist()
    assert record.generated is not None and len(ids) == 9
    with recording(model.stack) as recorded, torch.no_grad():
        model(torch.tensor([ids]))
    for step in record.generated.steps:
        assert [reading.module for reading in step.readings] == [0, 1]
        for reading in step.readings:
            row = recorded.maps[reading.module][0, :, step.position - 1, : step.position].numpy()
            np.testing.assert_allclose(reading.weights, row, atol=1e-3)  # kept in float16
            np.testing.assert_allclose(seen.maps[reading.module][:, step.position - 1, : step.position], row, atol=1e-6)


def test_a_decoding_step_reads_that_row_too(model: Model):
    """The keys of the cache and the new query give the row that was taken from the parallel pass."""
    seen = maps(model, PROMPT, generate=3)
    ids = seen.record.axes["text"].ids.tolist()[:-1]
    mixer, queries = model.stack.blocks[0].mixer, []
    hook = mixer.project["q"].register_forward_hook(lambda module, args, out: queries.append(out))
    with torch.no_grad():
        state = model.start(1)
        for number in ids:
            _, state = model.extend(torch.tensor([[number]]), state)
        model(torch.tensor([ids]))
    hook.remove()
    query = queries[-1][:, -1].view(1, 2, 1, -1)
    keys = state.blocks[0].mixer.inner.k.value
    row = (query @ keys.mT / keys.shape[-1] ** 0.5).softmax(-1)[0, :, 0].numpy()
    np.testing.assert_allclose(seen.record.generated.steps[-1].readings[0].weights, row, atol=1e-3)


def test_the_logit_lens_ends_with_the_prediction(model: Model):
    made = maps(model, PROMPT, generate=4).record.generated
    assert made is not None
    for step in made.steps:
        assert [line.state for line in step.lens] == [0, 1, 2]
        assert step.lens[-1].top[0].id == step.id and step.lens[-1].rank == 0
        assert step.lens[-1].top[0].probability == pytest.approx(step.choices[0].probability, abs=1e-6)
        led = [line.rank == 0 for line in step.lens]
        assert step.first_led == max((i for i in range(3) if all(led[i:])), key=lambda i: -i)


def test_the_cache_by_step():
    whole = maps(of_kind("decoder").eval(), PROMPT, generate=3).record.generated
    window = {"name": "window", "window": 3}
    near = maps(of_kind("decoder", attention=window).eval(), PROMPT, generate=3).record.generated
    sums = maps(of_kind("decoder", attention={"name": "linear"}).eval(), PROMPT, generate=3).record.generated
    assert whole is not None and near is not None and sums is not None
    size = 2 * 2 * 16 * 4  # layers, keys and values, width, bytes
    assert [step.cache_bytes for step in whole.steps] == [5 * size, 6 * size, 7 * size]
    assert [step.cached.tolist() for step in near.steps] == [[2, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert len({step.cache_bytes for step in sums.steps}) == 1 and sums.steps[0].cached is None


def test_an_encoder_decoder_reads_its_source_at_every_step():
    model = of_kind("transformer").eval()
    seen = maps(model, PROMPT, pair=[1, 3], generate=3)
    made = seen.record.generated
    assert made is not None and made.prompt == 2
    expected = decode.generate(model, [[1, 3]], max_new=3, source=[PROMPT])
    assert [step.id for step in made.steps] == expected.tokens[0]
    shapes = {reading.weights.shape for reading in made.steps[-1].readings}
    assert shapes == {(2, 4), (2, 5)}  # the target so far, and the source
    assert len(made.steps[0].lens) == 3


def test_an_end_token_stops():
    model = of_kind("decoder").eval()
    from longspan.inspect import trace

    greedy = trace.decode(model, PROMPT, 6, GREEDY)
    ended = trace.decode(model, PROMPT, 6, GREEDY, ends=[greedy.steps[2].id])
    assert len(ended.steps) <= 3 and ended.stopped == str(greedy.steps[2].id)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"generate": 0}, InvalidOption, "--generate must be at least 1, not 0"),
        ({"generate": 9}, InvalidInput, "the text has 5 tokens, and with 9 new ones it exceeds the 12 that the model"),
        ({"generate": 2, "sampling": Sampling(no_repeat_ngram=2)}, InvalidOption, "a trace has temperature, top_k"),
    ],
)
def test_what_cannot_be_traced(given: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        maps(of_kind("decoder", max_length=12), PROMPT, **given)
