"""Prompting: examples, prompts, answers, options and their normalisations, context overflow, own files."""

import json
from pathlib import Path

import pytest
import torch
from tests.hub.folders import bert, decoder, letters

from longspan import hub
from longspan.errors import InvalidInput, InvalidOption, Notice, UnknownName, Unsupported
from longspan.probe.prompts.answers import extract, is_right, majority
from longspan.probe.prompts.examples import choose_examples, permute_labels
from longspan.probe.prompts.findings import prompt_findings, summary
from longspan.probe.prompts.forms import Prompt, Turn, direct, first_stage, second_stage, worked
from longspan.probe.prompts.measure import (
    MODES,
    PromptSettings,
    Reply,
    build_sets,
    limit_sets,
    measure_prompts,
)
from longspan.probe.prompts.options import normalise, winner
from longspan.probe.prompts.own_files import read_questions
from longspan.probe.prompts.questions import NAMES, Question, arithmetic, calculation, choice
from longspan.probe.prompts.self_report import said_number, self_report
from longspan.probe.prompts.speaker import Speaker

NUMBER = calculation("plus", 617, 617, 3)
COLOUR = choice("own", "Which one?", "red", ("red", "dark red", "blue"))
CHAT = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


@pytest.fixture
def speaker(tmp_path: Path) -> Speaker:
    return Speaker(hub.load(decoder(tmp_path / "model", max_length=400)))


# Questions


def test_arithmetic_has_every_operation_and_number_of_digits_and_right_answers():
    questions = arithmetic(3)
    assert len(questions) == 60 and len({question.cell for question in questions}) == 15
    signs = {"plus": "+", "minus": "-", "times": "*"}
    for question in questions:
        one, operation, other = question.question.removeprefix("What is ").removesuffix("?").split()
        assert int(question.answer) == eval(f"{one} {signs[operation]} {other}")
        assert question.cell == (operation, len(one)) == (operation, len(other))
        assert question.steps.endswith(f"is {question.answer}.")  # the worked solution ends at the answer


def test_the_chance_of_a_guess_is_one_over_the_possible_results():
    assert [calculation(name, 1, 1, 1).chance for name in ("plus", "minus", "times")] == [1 / 19, 1 / 19, 1 / 82]
    assert calculation("times", 10, 10, 2).chance == 1 / (99 * 99 - 100 + 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_set_is_well_formed(name: str):
    questions = build_sets([name], 0)
    assert len({question.question for question in questions}) == len(questions)
    for question in questions:
        assert question.set == name and 0 < question.chance <= 0.5 and question.steps
        assert not question.options or question.answer in question.options
        assert is_right(extract(f"The answer is {question.answer}.", question), question)


def test_objects_are_asked_in_both_orders():
    first = [question.options[0] == question.answer for question in build_sets(["objects"], 0)]
    assert sum(first) * 2 == len(first)


def test_a_limit_spreads_over_operations_and_digits():
    kept = limit_sets(build_sets(["arithmetic", "facts"], 0), 15)
    assert len({question.cell for question in kept if question.cell}) == 15
    assert sum(question.set == "facts" for question in kept) == 10
    few = limit_sets(build_sets(["objects", "nonsense"], 0), 4)  # still balanced
    assert [question.options.index(question.answer) for question in few] == [0, 1, 0, 1, 1, 0, 1, 0]
    with pytest.raises(InvalidOption, match="limit must be at least 1, not 0"):
        limit_sets(kept, 0)


# Examples


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_examples_never_contain_the_question(name: str, seed: int):
    asked = build_sets([name], seed)
    pool = [*asked, *arithmetic(seed + 1, 8, apart=asked)]
    for question in asked:
        examples = choose_examples(question, pool, 4, seed)
        assert 1 <= len(examples) <= 4
        for form in (direct, worked):
            prompt = form(question, examples, chat=False)
            assert prompt.text().count(question.question) == 1  # as what is asked
        assert all(each.group != question.group and each.set == name for each in examples)
        assert examples == choose_examples(question, pool, 4, seed)  # seeded


def test_arithmetic_examples_are_not_among_the_questions():
    asked = arithmetic(0)
    assert not {each.group for each in asked} & {each.group for each in arithmetic(1, 8, apart=asked)}


def test_answers_are_balanced_in_the_examples():
    pool = [choice("own", f"Is {number} so?", "yes" if number < 9 else "no", ("yes", "no")) for number in range(12)]
    for seed in range(5):
        examples = choose_examples(choice("own", "Is it?", "yes", ("yes", "no")), pool, 4, seed)
        assert sorted(each.answer for each in examples) == ["no", "no", "yes", "yes"]
    orders = {tuple(e.answer for e in choose_examples(pool[0], pool, 4, seed)) for seed in range(12)}
    assert len(orders) > 2  # the order gives nothing away


def test_permuted_labels_are_all_wrong_and_nothing_else_changes():
    examples = [*arithmetic(0, 1)[:3], calculation("plus", 0, 0, 1), COLOUR]
    changed = permute_labels(examples)
    for before, after in zip(examples, changed):
        assert after.question == before.question and after.answer != before.answer
    assert changed[-1].answer == "dark red"
    assert permute_labels([calculation("plus", 2, 2, 1)])[0].answer == "5"


# Prompts


def test_prompts_as_text():
    example, question = calculation("plus", 20, 31, 2), calculation("plus", 12, 13, 2)
    assert direct(question, [example], chat=False).text() == (
        "Q: What is 20 plus 31?\nA: 51\n\nQ: What is 12 plus 13?\nA:"
    )
    assert worked(question, [example], chat=False).text() == (
        "Q: What is 20 plus 31?\nA: 20 plus 30 is 50. 50 plus 1 is 51. The answer is 51.\n\nQ: What is 12 plus 13?\nA:"
    )


def test_two_stages_of_zero_shot_reasoning():
    first = first_stage(calculation("plus", 12, 13, 2))
    assert first.text() == "Q: What is 12 plus 13?\nA: Let's think step by step."
    assert second_stage(first, " It is 25. ").text() == (
        "Q: What is 12 plus 13?\nA: Let's think step by step. It is 25.\nTherefore, the answer is"
    )


def test_options_are_listed_unless_the_question_names_them():
    assert COLOUR.text == "Which one? Options: red, dark red, blue."
    assert build_sets(["objects"], 0)[0].text == "Which is heavier, a toaster or a pencil?"


# Answers


@pytest.mark.parametrize(
    ("text", "marked", "answer"),
    [
        ("The answer is 1,234.", True, "1234"),
        ("So 617 plus 17 is 634. The answer is 1,234.", True, "1234"),
        ("The answer is 12. No, the answer is 1234", True, "1234"),
        ("617 plus 617 is 1234.", True, None),  # reasoning without an answer
        ("617 plus 617 is 1234.", False, "617"),  # a direct answer is what comes first
        (" 1234\n", False, "1234"),
        ("Answer: −7", False, "-7"),
        ("I do not know.", False, None),
        ("", False, None),
    ],
)
def test_numbers_in_texts(text: str, marked: bool, answer: str | None):
    assert extract(text, NUMBER, marked=marked) == answer
    assert is_right(answer, NUMBER) == (answer == "1234")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Red, I think, not blue", "red"),
        ("dark red", "dark red"),
        ("It is hundred or blue", "blue"),  # "red" inside a word does not count
        ("green", None),
    ],
)
def test_options_in_texts(text: str, answer: str | None):
    assert extract(text, COLOUR) == answer


def test_a_letter_as_option_is_not_an_article():
    letter = choice("own", "Which?", "A", ("A", "B"))
    assert extract("a B", letter) == "B"


def test_free_texts_match_exactly_without_case_and_articles():
    question = Question("own", "Who?", "The Queen")
    assert extract("queen.\nand more", question) == "queen" and is_right("queen", question)
    assert not is_right("queen of England", question) and not is_right(None, question)


def test_the_majority_ignores_missing_answers():
    assert majority(["3", None, "4", "4", None, None]) == "4"
    assert majority(["3", "4"]) == "3" and majority([None, None]) is None


# Options


def test_normalisations_choose_four_different_options():
    """Constructed: unequal tokens and characters, and an option that is likely after anything."""
    options = ["no", "perhaps", "incomprehensibilities", "maybe so"]
    logprobs = [[-2.0], [-1.6, -1.6], [-1.8] * 5, [-1.2, -1.2, -1.2]]
    prior = [[-1.0], [-3.0, -3.5], [-9.0], [-1.2, -1.2, -1.2]]
    scores = normalise(options, logprobs, prior)
    assert scores["raw"] == pytest.approx([-2.0, -3.2, -9.0, -3.6])
    assert scores["per token"] == pytest.approx([-2.0, -1.6, -1.8, -1.2])
    assert scores["per character"] == pytest.approx([-2 / 2, -3.2 / 7, -9 / 21, -3.6 / 8])
    assert scores["prior subtracted"] == pytest.approx([-1.0, 3.3, 0.0, 0.0])
    assert {name: winner(options, values) for name, values in scores.items()} == {
        "raw": "no",
        "per token": "maybe so",
        "per character": "incomprehensibilities",
        "prior subtracted": "perhaps",
    }


def test_scores_of_options_are_the_models(speaker: Speaker):
    prompt = speaker.fit(Prompt((), "ab"), 4)
    assert speaker.tokenizer.decode(prompt.ids) == "Q: ab\nA:"
    (found,) = speaker.score([prompt], [["x", "yz"]])
    for option, logprobs in zip((" x", " yz"), found):
        ids = [*prompt.ids, *speaker.tokenizer.encode(option, special=False).ids]
        with torch.no_grad():
            chances = speaker.model(torch.tensor([ids]))[0].log_softmax(-1)
        expected = [chances[at - 1, ids[at]].item() for at in range(len(prompt.ids), len(ids))]
        assert logprobs == pytest.approx(expected, abs=1e-5)


# The model


def test_a_chat_template_is_used_if_there_is_one(tmp_path: Path):
    torch.manual_seed(0)
    folder = decoder(tmp_path / "chat", max_length=400)
    tokenizer = letters()
    tokenizer.record["chat_template"] = CHAT
    tokenizer.save(folder)
    pretrained = hub.load(folder)
    prompt = Prompt((Turn("a", "b"),), "c", "d")
    chat = Speaker(pretrained)
    assert chat.chat and not Speaker(pretrained, chat=False).chat
    decoded = "".join(chat.tokenizer.inner.id_to_token(number) for number in chat.encode(prompt)).replace("Ġ", " ")
    assert decoded == "<s>user: a</s><s>assistant: b</s><s>user: c</s><s>assistant: d"
    with pytest.raises(Unsupported, match="this tokenizer has no template for chats"):
        Speaker(hub.load(decoder(tmp_path / "plain")), chat=True)


def test_a_masked_model_is_pointed_to_the_right_probe(tmp_path: Path):
    with pytest.raises(
        Unsupported, match=r"continues no prompts: a masked language model .* use `longspan probe bias`"
    ):
        Speaker(hub.load(bert(tmp_path / "bert")))


def test_overflow_drops_examples_and_never_the_question(tmp_path: Path):
    speaker = Speaker(hub.load(decoder(tmp_path / "model", max_length=40)))
    turns = tuple(Turn(letter, "r") for letter in "abc")  # 12 tokens each, and 7 for the question
    fitted = speaker.fit(Prompt(turns, "q"), 10)
    assert fitted.dropped == 1 and [turn.question for turn in fitted.prompt.examples] == ["b", "c"]
    assert speaker.tokenizer.decode(fitted.ids).endswith("Q: q\nA:")
    assert len(fitted.ids) + 10 <= 40
    with pytest.raises(InvalidInput, match="has 46 tokens with its prompt, which with 4 new ones are more than the 40"):
        speaker.fit(Prompt(turns, "q" * 40), 4)


def test_dropped_examples_are_told_and_counted(tmp_path: Path):
    speaker = Speaker(hub.load(decoder(tmp_path / "model", max_length=100)))
    questions = [calculation("plus", number, 1, 1) for number in range(3)]
    lines: list[str] = []
    measured = measure_prompts(speaker, questions, ["few-shot"], tell=lines.append)
    replies = measured.replies["few-shot"]
    assert all(reply.dropped for reply in replies)
    dropped = sum(reply.dropped for reply in replies)
    assert f"few-shot: {dropped} examples of 3 prompts were dropped: the model's context is too short" in lines
    (finding,) = prompt_findings(measured)
    assert f"{dropped} examples were dropped because the context is too short." in finding.control


# All modes


def test_all_modes_give_a_reply_for_every_question(tmp_path: Path):
    speaker = Speaker(hub.load(decoder(tmp_path / "model", max_length=None, position="sinusoidal")))
    questions = limit_sets(build_sets(None, 0), 2)
    settings = PromptSettings(shots=2, samples=3, max_new=4)
    measured = measure_prompts(speaker, questions, settings=settings)
    assert [mode for mode in measured.replies if not mode.startswith("options")] == [*list(MODES)[:-1]]
    for mode, replies in measured.replies.items():
        assert len(replies) == (8 if mode.startswith("options") else 10)
    assert all(len(reply.samples) == 3 for reply in measured.replies["consistency"])
    assert all(reply.answer is None for reply in measured.replies["chain"])  # four letters are no chain
    findings = {finding.name: finding for finding in prompt_findings(measured)}
    assert list(findings) == [*NAMES, "labels", "normalisations"]
    assert findings["facts"].values["modes"]["chain"]["missing"] == 100
    assert json.dumps([finding.plain() for finding in findings.values()])
    again = measure_prompts(speaker, questions, settings=settings)
    assert again.replies == measured.replies


class Taught:
    """Answers as told; stands for a speaker."""

    chat = False

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def fit(self, prompt: Prompt, room: int) -> object:
        from longspan.probe.prompts.speaker import Fitted

        return Fitted(prompt, [0], 0)

    def write(self, prompts: list, new: int, **rest: object) -> list[list[str]]:
        return [[self.answer] for _ in prompts]


def test_a_model_that_always_says_the_same_has_the_share_of_that_answer():
    questions = build_sets(["nonsense"], 0)
    measured = measure_prompts(Taught(" no."), questions, ["zero-shot", "chain"])
    values = {mode: summary(replies) for mode, replies in measured.replies.items()}
    assert (values["zero-shot"]["right"], values["zero-shot"]["guess"], values["zero-shot"]["commonest"]) == (
        50,
        50,
        50,
    )
    assert (values["chain"]["right"], values["chain"]["missing"]) == (0, 100)  # "no." names no answer
    (finding,) = prompt_findings(measured)
    assert finding.sentence.endswith(
        "a random guess has 50 %, always the commonest answer 50.0 %: not clearly above both."
    )


def test_summary_by_hand():
    replies = [Reply(COLOUR, "x", "red", True), Reply(COLOUR, "x", None, False, 2)]
    found = summary(replies)
    assert (found["right"], found["missing"], found["dropped"]) == (50, 50, 2)
    assert found["guess"] == pytest.approx(100 / 3) and found["low"] < 50 < found["high"]


def test_unknown_modes_and_sets_are_refused(speaker: Speaker):
    with pytest.raises(UnknownName, match="there is no mode 'few'"):
        measure_prompts(speaker, [NUMBER], ["few"])
    with pytest.raises(UnknownName, match="there is no set of questions 'fact'; did you mean 'facts'"):
        build_sets(["fact"], 0)
    with pytest.raises(InvalidOption, match="shots must be at least 1, not 0"):
        PromptSettings(shots=0)


# What a model says of itself


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("I have 135 million parameters.", 135e6),
        ("1,024 tokens", 1024),
        ("about 1.7B", 1.7e9),
        ("none", None),
        ("7 b", 7e9),
    ],
)
def test_numbers_that_a_model_says(text: str, number: float | None):
    assert said_number(text) == number


def test_what_a_model_says_stands_beside_what_was_counted(speaker: Speaker):
    finding = self_report(speaker, 0.25)
    count = sum(parameter.numel() for parameter in speaker.model.parameters())
    measured = {row["fact"]: row["measured"] for row in finding.values["rows"]}
    assert measured == {"parameters": count, "layers": 2, "tokens of context": 400, "arithmetic right, %": 25}
    assert len(finding.values["rows"]) == 8 and "of 8 answers about itself" in finding.sentence


# Own files


def test_own_questions_from_csv_and_json_lines(tmp_path: Path):
    table = tmp_path / "mine.csv"
    table.write_text("question,answer,options\nWhich?,red,red|blue\nHow many?,7,\n")
    lines = tmp_path / "mine.jsonl"
    lines.write_text(
        '{"question": "Which?", "answer": "red", "options": ["red", "blue"]}\n{"question": "How many?", "answer": 7}\n'
    )
    for path in (table, lines):
        one, other = read_questions(path)
        assert (one.options, one.chance, one.set) == (("red", "blue"), 0.5, "own")
        assert (other.answer, other.options, other.chance) == ("7", (), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("question,reply\na,b\n", "line 2: there is no column 'answer'; it has question, reply"),
        ("question,answer\na,b\n,c\n", "line 3: the question is empty"),
        ("question,answer\na, \n", "line 2: the answer is empty"),
        ("question,answer,options\na,b,c|d\n", "line 2: the answer 'b' is none of the options c, d"),
        ("question,answer,options\na,b,b|b\n", "line 2: expected two or more different options, got b, b"),
        ("question,answer,options\na,b,b|\n", "line 2: expected options as texts, separated by |, got 'b|'"),
        ("question,answer,options\na,b,[b\n", "line 2: options begin like a JSON list and are none"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, content: str, message: str):
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        read_questions(path)
    assert f"{path}, {message}" in str(caught.value)


def test_a_question_that_stands_twice_is_named_and_counted_once(tmp_path: Path):
    path = tmp_path / "mine.csv"
    path.write_text("question,answer\na,b\nc,d\na,b\n")
    with pytest.warns(Notice, match="line 4: the question of line 2 again; it is counted once"):
        assert len(read_questions(path)) == 2
    with pytest.raises(InvalidInput, match="there is no file"):
        read_questions(tmp_path / "nothing.csv")
