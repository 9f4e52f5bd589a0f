"""Recall of models whose recall is known."""

import pytest
import torch
from tests.adapt.measures.planted import WORDS, Copier, characters

from longspan.adapt.measures.reach import Reach, reach_of
from longspan.adapt.measures.recall import BEYOND_FIELD, BEYOND_WINDOW, IN_WINDOW, best_answer, recall
from longspan.adapt.measures.recall_prompts import RunningText, common_tokens, needle_prompts, pair_prompt
from longspan.errors import InvalidInput
from longspan.models.decoder import Decoder

GENERATOR = torch.Generator


def text(rows: int = 4, length: int = 300) -> torch.Tensor:
    return torch.randint(WORDS, (rows, length), generator=GENERATOR().manual_seed(0))


def quiet_text() -> torch.Tensor:
    """Tokens for pairs stand in the first row only; what fills the gaps is one token."""
    return torch.cat([torch.arange(WORDS)[None], torch.full((200, WORDS), 7)])


@pytest.mark.parametrize("distance", [2, 3, 16, 19, 20, 64, 257])
def test_a_pair_stands_as_far_away_as_it_says(distance: int):
    rows = quiet_text()
    for seed in range(20):
        generator = GENERATOR().manual_seed(seed)
        prompt = pair_prompt(RunningText(rows[1:]), torch.arange(100, 200), distance, 4, generator)
        key, value = prompt.ids[-1], prompt.answers[prompt.right, 0]
        assert prompt.ids.tolist().count(int(key)) == 2 and prompt.ids.tolist().count(int(value)) == 1
        at = prompt.ids.tolist().index(int(value))
        assert prompt.ids[at - 1] == key and len(prompt.ids) - 1 - at == distance == prompt.distance
        assert len(set(prompt.answers.flatten().tolist())) == 10 and at >= 16 + 4


def test_a_needle_stands_at_its_depth_and_the_text_has_its_length():
    tokenizer, depths = characters(), (0.1, 0.5, 0.9)
    prompts = needle_prompts(tokenizer, RunningText(text() % 50), depths, 200, GENERATOR().manual_seed(0))
    question = tokenizer.encode(" The magic number of the day is", special=False).ids
    for prompt, depth in zip(prompts, depths):
        ids, room = prompt.ids.tolist(), 200 - 2 * len(question) - 5 - 1
        begin = round(depth * room)
        assert len(ids) == 200 and ids[-len(question) :] == question == ids[begin : begin + len(question)]
        at = begin + len(question)
        assert ids[at : at + 5] == prompt.answers[prompt.right].tolist()  # a space and four digits
        assert prompt.distance == len(ids) - 1 - (at + 4)


def test_a_model_that_copies_is_always_right():
    rows = text() % 32
    report = recall(Copier(), None, quiet_text(), reach=Reach(32, None, 0), trials=5)
    assert [(cell.at, cell.hits, cell.count) for cell in report.cells] == [(0.5, 5, 5), (2.0, 5, 5), (8.0, 5, 5)]
    assert report.chance == 0.1 and report.note == "no needle: there is no tokenizer to write it with"
    cells = recall(Copier(), characters(), rows, reach=Reach(32, None, 0), trials=1).cells
    assert [cell.kind for cell in cells] == ["needle"] * 9 + ["pairs"] * 3


def test_a_model_with_a_window_is_right_inside_and_at_chance_beyond():
    reach = Reach(32, 64, 0)
    report = recall(Copier(32), None, quiet_text(), reach=reach, trials=30)
    inside, beyond, far = report.cells
    assert (inside.place, inside.hits) == (IN_WINDOW, 30) and not inside.at_chance
    assert (beyond.distance, beyond.place) == (64, BEYOND_WINDOW) and (far.distance, far.place) == (256, BEYOND_FIELD)
    assert beyond.at_chance and far.at_chance
    together = report.beyond_window()
    assert together is not None and together.count == 60 and together.at_chance
    assert together.hits == beyond.hits + far.hits


def test_nothing_beyond_the_receptive_field_can_change_the_answer():
    """Two layers of window 4: the value 8 tokens back changes the logits, the one 9 back does not, to the bit."""
    torch.manual_seed(0)
    sizes = {"vocabulary": WORDS, "width": 16, "layers": 2, "heads": 2, "hidden": 16, "max_length": 64}
    attention = {"name": "window", "window": 4}
    model = Decoder.build(**sizes, position="rotary", attention=attention).double().eval()
    assert reach_of(model) == Reach(4, 8, 0)
    ids = torch.randint(WORDS, (1, 40))
    for back, same in ((8, False), (9, True)):
        other = ids.clone()
        other[0, -1 - back] = (other[0, -1 - back] + 1) % WORDS
        with torch.no_grad():
            assert torch.equal(model(ids)[0, -1], model(other)[0, -1]) == same, back


def test_a_layer_kept_exact_has_no_border():
    sizes = {"vocabulary": WORDS, "width": 16, "layers": 2, "heads": 2, "hidden": 16, "max_length": 64}
    attention = [{"name": "window", "window": 4, "sinks": 2}, {"name": "softmax"}]
    assert reach_of(Decoder.build(**sizes, position="rotary", attention=attention)) == Reach(4, None, 2)


def test_the_answer_is_the_one_of_the_highest_likelihood():
    """All answers together, against the likelihood of each whole text by itself."""
    torch.manual_seed(0)
    sizes = {"vocabulary": 256, "width": 16, "layers": 2, "heads": 2, "hidden": 16, "max_length": 64}
    model = Decoder.build(**sizes, position="rotary").double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that answers differ
    for seed in range(5):
        (prompt,) = needle_prompts(characters(), RunningText(text() % 50), [0.5], 110, GENERATOR().manual_seed(seed))
        scores = []
        with torch.no_grad():
            for answer in prompt.answers:
                whole = torch.cat([prompt.ids, answer])[None]
                state = model.start(1)
                logits, _ = model.extend(whole, state, beyond=True)
                chances = logits[0].log_softmax(-1)
                places = range(len(prompt.ids) - 1, whole.shape[1] - 1)
                scores.append(sum(float(chances[at, whole[0, at + 1]]) for at in places))
            assert best_answer(model, prompt) == scores.index(max(scores))


def test_too_few_different_tokens():
    with pytest.raises(InvalidInput, match="random pairs need a text of 20 different tokens or more; it has 1"):
        common_tokens(torch.zeros(2, 9, dtype=torch.long), [])
