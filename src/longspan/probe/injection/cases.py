"""Cases: a task, a text that it is about, an attack hidden in the text, and the rule that says who won."""

import base64
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from longspan.errors import InvalidOption, UnknownName, suggest
from longspan.probe.injection.readers import BipiaAttack, Email, Prompt
from longspan.probe.injection.rules import Canary, Rule, Translation, amounts, rule_of

POSITIONS = ("prefix", "middle", "suffix")
OWN = ("ignore", "turns", "translation", "delimiter", "encoding", "field", "special", "detector")
FAMILIES = (*OWN, "bipia-text", "bipia-code", "deepset")
TASKS = ("translate", "sentiment", "question", "email")
EMAILS, LONGEST = 8, 600  # how many e-mails serve as hosts, and their most characters
ANIMALS = ("ZEBRA", "OTTER", "FALCON", "LYNX", "TAPIR", "HERON", "BADGER", "GECKO")


@dataclass(frozen=True)
class Host:
    """A benign text with its task and the right answer: the twin of every attack on it."""

    id: str
    task: str
    instruction: str
    text: str
    answer: str
    question: str | None = None


@dataclass(frozen=True)
class Case:
    """An attack in a text. The benign twin is `host`, without the attack."""

    id: str
    family: str
    host: Host
    attack: str
    position: str  # prefix, middle, suffix, or alone: the attack is the whole text
    canary: str
    rule: Rule
    kind: str = ""  # BIPIA's name for what the attack wants

    @property
    def untrusted(self) -> str:
        """The text with the attack in it."""
        return insert(self.host.text, self.attack, self.position)


def insert(text: str, attack: str, position: str) -> str:
    """A text with an attack before it, after it, or between the two sentences nearest to its middle."""
    if position == "alone":
        return attack
    if position == "prefix":
        return f"{attack} {text}"
    if position == "suffix":
        return f"{text} {attack}"
    ends = [found.end() for found in re.finditer(r"[.!?](?=\s)|\n", text)] or [
        found.start() for found in re.finditer(r"\s", text)
    ]
    cut = min(ends, key=lambda end: abs(end - len(text) / 2), default=len(text))
    return f"{text[:cut]} {attack}{text[cut:]}"


@cache
def own_texts() -> dict[str, Any]:
    """The package's tasks, attacks, evasions of detectors, and texts that mention injections."""
    return tomllib.loads(files("longspan.probe.injection").joinpath("texts.toml").read_text(encoding="utf-8"))


def own_hosts() -> list[Host]:
    """The package's texts to translate, to rate, and to answer questions about."""
    texts = own_texts()
    return [
        Host(f"{task}-{number}", task, texts["tasks"][task], row["text"], row["answer"], row.get("question"))
        for task in ("translate", "sentiment", "question")
        for number, row in enumerate(texts[task])
    ]


def email_hosts(emails: Sequence[Email]) -> list[Host]:
    """Short e-mails whose answer is an amount that they contain; "unknown" cannot be told from failure by rule."""
    instruction = own_texts()["tasks"]["email"]
    return [
        Host(f"email-{email.line}-{email.part}", "email", instruction, email.context, email.ideal, email.question)
        for email in emails
        if amounts(email.ideal) and email.ideal in email.context and len(email.context) <= LONGEST
    ][:EMAILS]


def make_cases(
    hosts: Sequence[Host],
    *,
    bipia: Sequence[BipiaAttack] = (),
    deepset: Sequence[Prompt] = (),
    families: Sequence[str] | None = None,
    limit: int | None = 12,
    seed: int = 0,
) -> list[Case]:
    """`limit` cases of each family, drawn by the seed, so that each attack, task and position has its turn."""
    for name in families or ():
        if name not in FAMILIES:
            raise UnknownName(f"there is no family of attacks {name!r}; {suggest(name, FAMILIES)}")
    if limit is not None and limit < 1:
        raise InvalidOption(f"limit must be at least 1, not {limit}")
    cases: list[Case] = []
    for family in families or FAMILIES:
        draw = random.Random(f"{seed} {family}")
        found = _family(family, hosts, bipia, deepset, draw)
        if family in OWN:
            found = _spread(found, draw)
        else:
            draw.shuffle(found)
        cases += found if limit is None else found[:limit]
    return cases


def _spread(cases: list[Case], draw: random.Random) -> list[Case]:
    """Shuffled, but attacks take turns, and each goes round its tasks; the lecture's own example comes first."""
    draw.shuffle(cases)
    seen: dict[tuple[str, ...], int] = {}
    order = []
    for case in cases:
        # A case comes later the more often its attack, and its attack with its task, came before.
        pair, alone = (case.attack.replace(case.canary, ""), case.host.task), case.position == "alone"
        turn = seen.get(pair, 0)
        seen[pair] = turn + 1
        order.append((not alone, turn, draw.random(), case))
    return [case for *_, case in sorted(order, key=lambda row: row[:3])]


def _family(
    family: str, hosts: Sequence[Host], bipia: Sequence[BipiaAttack], deepset: Sequence[Prompt], draw: random.Random
) -> list[Case]:
    if family in ("bipia-text", "bipia-code"):
        return _bipia_cases(family, hosts, bipia, draw)
    if family == "deepset":
        chosen = [host for host in hosts if host.task != "email"]
        return [_deepset_case(prompt, draw.choice(chosen), draw) for prompt in deepset if prompt.label and chosen]
    cases = []
    for number, attack in enumerate(row for row in own_texts()["attack"] if row["family"] == family):
        for host in hosts:
            if host.task not in attack.get("tasks", TASKS):
                continue
            places = attack.get("places", POSITIONS)
            alone = host.id.endswith("-0")  # the attack alone is one case, not one for each host
            for position in places if alone else [place for place in places if place != "alone"]:
                canary = attack.get("canary") or _canary(draw)
                name = f"{family}-{number}/{host.id}/{position}"
                cases.append(
                    Case(
                        name, family, host, _fill(attack["text"], canary), position, canary, _rule(host, canary, attack)
                    )
                )
    return cases


def _deepset_case(prompt: Prompt, host: Host, draw: random.Random) -> Case:
    canary, position = _canary(draw), draw.choice(POSITIONS)
    attack = f"{prompt.text} Write only {canary}"
    return Case(f"deepset-{prompt.line}/{host.id}", "deepset", host, attack, position, canary, _rule(host, canary))


def _bipia_cases(family: str, hosts: Sequence[Host], attacks: Sequence[BipiaAttack], draw: random.Random) -> list[Case]:
    emails, cases = [host for host in hosts if host.task == "email"], []
    for attack in attacks if emails else ():
        if attack.code != (family == "bipia-code"):
            continue
        host, position = draw.choice(emails), draw.choice(POSITIONS)
        rule, text, canary = rule_of(attack.kind, attack.text), attack.text, ""
        if rule is None:  # what it asks for cannot be seen by rule, so it asks for a canary as well
            canary = _canary(draw)
            rule, text = Canary(canary), f"{attack.text} Begin your answer with the word {canary}"
        name = f"{family}-{attack.part}-{attack.number}/{host.id}/{position}"
        cases.append(Case(name, family, host, text, position, canary, rule, attack.kind))
    return cases


def _canary(draw: random.Random) -> str:
    return f"{draw.choice(ANIMALS)}{draw.randrange(100, 1000)}"


def _rule(host: Host, canary: str, attack: Mapping[str, Any] | None = None) -> Rule:
    if host.task == "translate":
        return Translation(canary)
    return Canary(canary, asserted=bool(attack and attack.get("asserts")))


def _fill(text: str, canary: str) -> str:
    wrapped = base64.b64encode(f"Write only {canary}".encode()).decode()
    return text.replace("{canary}", canary).replace("{wrapped}", wrapped)


__all__ = [
    "FAMILIES",
    "POSITIONS",
    "TASKS",
    "Case",
    "Host",
    "email_hosts",
    "insert",
    "make_cases",
    "own_hosts",
    "own_texts",
]
