"""Ask every question in every mode."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from longspan.decode import Sampling
from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest
from longspan.probe.prompts.answers import extract, is_right, majority
from longspan.probe.prompts.examples import choose_examples, permute_labels
from longspan.probe.prompts.forms import Prompt, direct, first_stage, second_stage, worked
from longspan.probe.prompts.options import NORMALISATIONS, normalise, winner
from longspan.probe.prompts.questions import NAMES, SETS, Question, arithmetic
from longspan.probe.prompts.speaker import Fitted, Speaker
from longspan.probe.scoring import Tell, quiet

MODES = {
    "zero-shot": "the question alone",
    "one-shot": "one example",
    "few-shot": "several examples",
    "permuted": "several examples with wrong answers (control)",
    "chain": "examples with worked solutions (chain of thought)",
    "zero-chain": '"Let\'s think step by step", then the answer, in two stages',
    "consistency": "the majority of sampled chains of thought",
    "options": "the likeliest option, by four normalisations",
}
ANSWER = 16  # new tokens of a direct answer
POOL = 8  # arithmetic examples of each operation and number of digits


@dataclass(frozen=True)
class PromptSettings:
    """How questions are asked."""

    shots: int = 4
    samples: int = 5
    temperature: float = 0.7
    max_new: int = 96  # tokens of a chain of thought
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("shots", "samples", "max_new"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Reply:
    """What a model answered to a question in a mode."""

    question: Question
    text: str  # as written; of several samples the first
    answer: str | None
    right: bool
    dropped: int = 0  # examples that found no room
    samples: tuple[str | None, ...] = ()  # consistency: all answers


@dataclass
class Measured:
    """The replies of each mode; the modes of options are named "options, raw" and so on."""

    chat: bool
    replies: dict[str, list[Reply]] = field(default_factory=dict)


def build_sets(names: Sequence[str] | None, seed: int, own: Sequence[Question] = ()) -> list[Question]:
    """The questions of the named sets (default: all) and the user's own."""
    if names is None:
        names = () if own else NAMES
    for name in names:
        if name not in NAMES:
            raise UnknownName(f"there is no set of questions {name!r}; {suggest(name, NAMES)}")
    questions = [each for name in names for each in (arithmetic(seed) if name == "arithmetic" else SETS[name]())]
    return [*questions, *own]


def limit_sets(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions of each set: the first ones or, of arithmetic, spread over operations and digits."""
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit must be at least 1, not {limit}")
    sets: dict[str, list[Question]] = {}
    for question in questions:
        sets.setdefault(question.set, []).append(question)
    kept = []
    for members in sets.values():
        count = len(members) if limit is None else min(limit, len(members))
        step = len(members) if members[0].cell is not None else count
        kept += [members[number * step // count] for number in range(count)]
    return kept


def measure_prompts(
    speaker: Speaker,
    questions: Sequence[Question],
    modes: Sequence[str] | None = None,
    *,
    pool: Sequence[Question] | None = None,
    settings: PromptSettings | None = None,
    tell: Tell = quiet,
) -> Measured:
    """Replies to all questions in all modes. `pool` has the examples (default: the other questions of each set).

    Arithmetic examples are drawn besides, and are none of the questions.
    """
    settings = settings or PromptSettings()
    for mode in modes or ():
        if mode not in MODES:
            raise UnknownName(f"there is no mode {mode!r}; {suggest(mode, tuple(MODES))}")
    if not questions:
        raise InvalidInput("there are no questions; name a set, or give a file with questions")
    asked = list(questions)
    pool = list(asked if pool is None else pool)
    drawn = arithmetic(settings.seed + 1, POOL, apart=[each for each in asked if each.cell is not None])
    session = _Session(speaker, asked, [*(each for each in pool if each.cell is None), *drawn], settings, tell)
    measured = Measured(speaker.chat)
    for mode in modes or MODES:
        measured.replies.update(session.run(mode))
    return measured


class _Session:
    def __init__(
        self,
        speaker: Speaker,
        questions: list[Question],
        pool: list[Question],
        settings: PromptSettings,
        tell: Tell,
    ) -> None:
        self.speaker, self.questions, self.pool, self.settings, self.tell = speaker, questions, pool, settings, tell
        self.examples = [choose_examples(each, pool, settings.shots, settings.seed) for each in questions]

    def run(self, mode: str) -> dict[str, list[Reply]]:
        self.mode = mode
        self.tell(f"mode {mode}: {MODES[mode]}")
        if mode == "options":
            return self._options()
        if mode == "zero-chain":
            return {mode: self._two_stages()}
        if mode in ("chain", "consistency"):
            return {mode: self._chains(sampled=mode == "consistency")}
        return {mode: self._direct(mode)}

    def _say(self, line: str) -> None:
        self.tell(f"{self.mode}: {line}")

    def _fit(self, prompts: Sequence[Prompt], room: int) -> list[Fitted]:
        fitted = [self.speaker.fit(prompt, room) for prompt in prompts]
        short = [each.dropped for each in fitted if each.dropped]
        if short:
            self._say(f"{sum(short)} examples of {len(short)} prompts were dropped: the model's context is too short")
        return fitted

    def _direct(self, mode: str) -> list[Reply]:
        count = {"zero-shot": 0, "one-shot": 1}.get(mode, self.settings.shots)
        chosen = [each[:count] for each in self.examples]
        if mode == "permuted":
            chosen = [permute_labels(each) for each in chosen]
        chat = self.speaker.chat
        prompts = [direct(each, examples, chat=chat) for each, examples in zip(self.questions, chosen)]
        new = 2 * ANSWER if chat else ANSWER
        fitted = self._fit(prompts, new)
        texts = self.speaker.write(fitted, new, stop=("\n",), tell=self._say)
        return [self._reply(row, text[0], fitted[row]) for row, text in enumerate(texts)]

    def _chains(self, *, sampled: bool) -> list[Reply]:
        settings, chat = self.settings, self.speaker.chat
        prompts = [worked(each, examples, chat=chat) for each, examples in zip(self.questions, self.examples)]
        fitted = self._fit(prompts, settings.max_new)
        how = Sampling(temperature=0.0)
        if sampled:
            how = Sampling(temperature=settings.temperature, samples=settings.samples, seed=settings.seed)
        written = self.speaker.write(fitted, settings.max_new, stop=("\n\n", "\nQ:"), sampling=how, tell=self._say)
        replies = []
        for row, texts in enumerate(written):
            question = self.questions[row]
            answers = tuple(extract(text, question, marked=True) for text in texts)
            answer, right = majority(answers), is_right(majority(answers), question)
            replies.append(Reply(question, texts[0], answer, right, fitted[row].dropped, answers if sampled else ()))
        return replies

    def _two_stages(self) -> list[Reply]:
        new = self.settings.max_new
        begin = [first_stage(each) for each in self.questions]
        # The second stage must hold the reasoning too.
        first = self._fit(begin, new + 2 * ANSWER)
        reasons = [texts[0] for texts in self.speaker.write(first, new, stop=("\nQ:",), tell=self._say)]
        second = self._fit([second_stage(prompt, text) for prompt, text in zip(begin, reasons)], ANSWER)
        ends = self.speaker.write(second, ANSWER, stop=("\n",), tell=self._say)
        return [
            self._reply(row, f"{begin[row].begin} {reasons[row].strip()} … {text[0]}", second[row], text[0])
            for row, text in enumerate(ends)
        ]

    def _reply(self, row: int, text: str, fitted: Fitted, final: str | None = None) -> Reply:
        question = self.questions[row]
        answer = extract(text if final is None else final, question)
        return Reply(question, text, answer, is_right(answer, question), fitted.dropped)

    def _options(self) -> dict[str, list[Reply]]:
        """Only questions with options; the question alone, and an empty question for the prior."""
        asked = [each for each in self.questions if each.options]
        if not asked:
            return {}
        speaker, options = self.speaker, [each.options for each in asked]
        longest = max(len(speaker.option_ids(option)) for each in options for option in each)
        prompts = self._fit([direct(each, (), chat=speaker.chat) for each in asked], longest)
        found = speaker.score(prompts, options, self._say)
        different = list(dict.fromkeys(option for each in options for option in each))
        blank = speaker.fit(direct(Question("", "", ""), (), chat=speaker.chat), longest)
        prior = dict(zip(different, speaker.score([blank], [different], self._say)[0]))
        replies: dict[str, list[Reply]] = {f"options, {name}": [] for name in NORMALISATIONS}
        for question, prompt, logprobs in zip(asked, prompts, found):
            scores = normalise(question.options, logprobs, [prior[option] for option in question.options])
            for name, values in scores.items():
                chosen = winner(question.options, values)
                replies[f"options, {name}"].append(
                    Reply(question, chosen, chosen, chosen == question.answer, prompt.dropped)
                )
        return replies


__all__ = ["MODES", "Measured", "PromptSettings", "Reply", "build_sets", "limit_sets", "measure_prompts"]
