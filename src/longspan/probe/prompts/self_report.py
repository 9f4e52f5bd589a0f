"""What a model says of itself, beside what was measured: text about oneself is no measurement."""

from collections.abc import Mapping
from dataclasses import dataclass

from longspan.inspect.measures.findings import Finding, Grid
from longspan.probe.prompts.answers import NUMBER, plain_number
from longspan.probe.prompts.forms import Prompt
from longspan.probe.prompts.speaker import Speaker
from longspan.probe.scoring import Tell, quiet

NEW = 40


@dataclass(frozen=True)
class About:
    """A fact about the model, and two ways to ask for it."""

    what: str
    ask: tuple[str, str]


ABOUT = (
    About("parameters", ("How many parameters do you have?", "What is your number of parameters?")),
    About("layers", ("How many layers does your neural network have?", "Of how many layers are you made?")),
    About("tokens of context", ("How many tokens can you read at once?", "How long is your context, in tokens?")),
    About(
        "arithmetic right, %",
        (
            "What percentage of additions, subtractions and multiplications do you calculate correctly?",
            "Of 100 calculations with numbers of up to five digits, how many do you get right?",
        ),
    ),
)
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "k": 10**3, "m": 10**6, "b": 10**9}


def said_number(text: str) -> float | None:
    """The first number of a text: "135 million" is 135,000,000."""
    found = NUMBER.search(text)
    if found is None:
        return None
    unit = text[found.end() :].replace("-", " ").split()
    scale = SCALES.get(unit[0].strip(".,;:!?").lower(), 1) if unit else 1
    return float(plain_number(found[0])) * scale


def self_report(speaker: Speaker, accuracy: float | None, tell: Tell = quiet) -> Finding:
    """Asks each fact in two ways; `accuracy` is the measured share of right arithmetic (None: not measured)."""
    model = speaker.model
    truth: Mapping[str, float | None] = {
        "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        "layers": _number(getattr(model.options, "layers", None)),
        "tokens of context": _number(model.max_length),
        "arithmetic right, %": None if accuracy is None else 100 * accuracy,
    }
    questions = [(about, question) for about in ABOUT for question in about.ask]
    prompts = [speaker.fit(Prompt((), question), NEW) for _, question in questions]
    texts = [each[0] for each in speaker.write(prompts, NEW, stop=("\n",), tell=tell)]
    rows, near = [], 0
    for (about, question), text in zip(questions, texts):
        said, real = said_number(text), truth[about.what]
        near += said is not None and real is not None and abs(said - real) <= 0.1 * abs(real)
        rows.append((about.what, question, clean(text), said, real))
    agree = sum(said_number(one) == said_number(other) for one, other in zip(texts[::2], texts[1::2]))
    known = sum(truth[about.what] is not None for about, _ in questions)
    return Finding(
        "self_report",
        "What the model says of itself",
        f"{near} of {known} answers about itself are within 10 % of what was measured; asked in other words, the model "
        f"names the same number (or none) for {agree} of {len(ABOUT)} facts.",
        "The right column is counted from the weights or measured in this run. A model has no access to either: what "
        "it says of itself is text that is likely after the question, and no measurement, also where it is right.",
        [Grid("Said and measured", ("fact", "question", "the model writes", "number in it", "measured"), rows)],
        {"rows": [dict(zip(("fact", "question", "text", "said", "measured"), row)) for row in rows]},
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int) else None


def clean(text: str, most: int = 160) -> str:
    """One line without control characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


__all__ = ["ABOUT", "clean", "said_number", "self_report"]
