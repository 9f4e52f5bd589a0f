"""Prompts, as text for base models and as messages for chat models.

Chains of thought follow Wei et al. 2022 (worked examples) and Kojima et al. 2022 (two stages, section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.data.tokenizers.chat_template import Message
from longspan.probe.prompts.questions import Question

THINK = "Let's think step by step."
THEREFORE = "Therefore, the answer is"
SHORT = "Reply with the answer alone."
REASON = 'Think step by step, and end with "The answer is" and the answer.'


@dataclass(frozen=True)
class Turn:
    """A question and what was, or is to be, replied."""

    question: str
    reply: str


@dataclass(frozen=True)
class Prompt:
    """Examples, then a question, then the beginning of the reply."""

    examples: tuple[Turn, ...]
    question: str
    begin: str = ""

    def without_first(self) -> "Prompt":
        """The same prompt with one example less."""
        return Prompt(self.examples[1:], self.question, self.begin)

    def text(self) -> str:
        """For base models."""
        turns = [f"Q: {turn.question}\nA: {turn.reply}\n\n" for turn in self.examples]
        return "".join(turns) + f"Q: {self.question}\nA:" + (f" {self.begin}" if self.begin else "")

    def messages(self) -> list[Message]:
        """For chat models; the beginning of the reply follows behind the template."""
        turns: list[Message] = []
        for turn in self.examples:
            turns += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.reply}]
        return [*turns, {"role": "user", "content": self.question}]


def direct(question: Question, examples: Sequence[Question], *, chat: bool) -> Prompt:
    """Zero, one or several examples with their answers alone."""
    ask = f" {SHORT}" if chat else ""
    return Prompt(tuple(Turn(each.text + ask, each.answer) for each in examples), question.text + ask)


def worked(question: Question, examples: Sequence[Question], *, chat: bool) -> Prompt:
    """Examples whose answers are reasoned (chain of thought)."""
    ask = f" {REASON}" if chat else ""
    turns = [Turn(each.text + ask, f"{each.steps} The answer is {each.answer}.") for each in examples if each.steps]
    return Prompt(tuple(turns), question.text + ask)


def first_stage(question: Question) -> Prompt:
    """Zero-shot chain of thought: the reply begins with a sentence that asks for steps."""
    return Prompt((), question.text, THINK)


def second_stage(prompt: Prompt, reasoning: str) -> Prompt:
    """The same with the reasoning that the model wrote, and the beginning of the answer."""
    return Prompt((), prompt.question, f"{prompt.begin} {reasoning.strip()}\n{THEREFORE}")


__all__ = ["THEREFORE", "THINK", "Prompt", "Turn", "direct", "first_stage", "second_stage", "worked"]
