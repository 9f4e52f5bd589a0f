"""A model that answers prompts: token ids with or without its chat template, generation, scores of options."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan import decode
from longspan.data import encode_chat
from longspan.data.tokenizers.chat_template import template
from longspan.decode import GREEDY, Sampling
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.generate import ends_of
from longspan.hub.use.texts import tokenizer_of
from longspan.models.base import CausalModel, TextHeads
from longspan.probe.prompts.forms import Prompt
from longspan.probe.scoring import Tell, quiet

ROWS = 8  # prompts read at once


@dataclass(frozen=True)
class Fitted:
    """A prompt as ids, and how many of its examples had to be left out."""

    prompt: Prompt
    ids: list[int]
    dropped: int


class Speaker:
    """Prompts go in as text or, with `chat`, through the chat template; None takes the template if there is one."""

    def __init__(self, pretrained: Pretrained, chat: bool | None = None) -> None:
        model = pretrained.model
        name = pretrained.family or model.name
        if not isinstance(model, CausalModel) or model.reads_source:
            masked = isinstance(model, TextHeads) and "masked" in model.heads
            other = (
                "a masked language model fills gaps; use `longspan probe bias`, which scores it, or `longspan fill`"
                if masked
                else "give a causal language model"
            )
            raise Unsupported(f"this {name} continues no prompts: {other}")
        self.model, self.tokenizer = model, tokenizer_of(pretrained)
        self.ends = ends_of(pretrained, self.tokenizer)
        if chat:
            template(self.tokenizer)  # refuses now if there is none
        self.chat = _has_template(pretrained) if chat is None else chat

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt, up to where the model goes on."""
        if self.chat:
            ids = encode_chat(self.tokenizer, prompt.messages())
            return [*ids, *self.tokenizer.encode(prompt.begin, special=False).ids] if prompt.begin else ids
        encoded = self.tokenizer.encode(prompt.text())
        ids = list(encoded.ids)
        while len(ids) > 1 and encoded.added[len(ids) - 1]:  # an end token would end the prompt
            ids.pop()
        return ids

    def fit(self, prompt: Prompt, room: int) -> Fitted:
        """Leaves out the first examples of a prompt that leaves no room for `room` new tokens; never the question."""
        most, ids, dropped = self.model.max_length, self.encode(prompt), 0
        while most is not None and len(ids) + room > most:
            if not prompt.examples:
                raise InvalidInput(
                    f"the question {prompt.question[:60]!r} has {len(ids)} tokens with its prompt, which with {room} "
                    f"new ones are more than the {most} that the model holds; shorten it, or give a smaller --max-new"
                )
            prompt, dropped = prompt.without_first(), dropped + 1
            ids = self.encode(prompt)
        return Fitted(prompt, ids, dropped)

    def write(
        self,
        prompts: Sequence[Fitted],
        new: int,
        *,
        stop: Sequence[str] = (),
        sampling: Sampling = GREEDY,
        tell: Tell = quiet,
    ) -> list[list[str]]:
        """`sampling.samples` texts after each prompt."""
        results: list[list[str]] = [[] for _ in prompts]
        stops = () if self.chat else tuple(stop)
        for begin, rows in _batches([len(prompt.ids) for prompt in prompts]):
            tell(f"answered {begin:,} of {len(prompts):,} prompts")
            generated = decode.generate(
                self.model,
                [prompts[row].ids for row in rows],
                max_new=new,
                sampling=sampling,
                eos=self.ends,
                stop=stops,
                tokenizer=self.tokenizer.decode,
            )
            assert generated.texts is not None
            for at, row in enumerate(rows):
                results[row] = generated.texts[at * sampling.samples : (at + 1) * sampling.samples]
        return results

    def score(
        self, prompts: Sequence[Fitted], options: Sequence[Sequence[str]], tell: Tell = quiet
    ) -> list[list[list[float]]]:
        """For each prompt and each of its options, the log-probability of every token of the option."""
        pairs = [(row, option) for row, each in enumerate(options) for option in each]
        results: list[list[list[float]]] = [[] for _ in prompts]
        found: list[list[float]] = [[] for _ in pairs]
        for begin, batch in _batches([len(prompts[row].ids) for row, _ in pairs]):
            tell(f"scored {begin:,} of {len(pairs):,} options")
            ids = [self.option_ids(pairs[at][1]) for at in batch]
            scores = decode.score(self.model, [prompts[pairs[at][0]].ids for at in batch], ids)
            for at, tokens in zip(batch, scores):
                found[at] = tokens.tolist()
        for (row, _), logprobs in zip(pairs, found):
            results[row].append(logprobs)
        return results

    def option_ids(self, option: str) -> list[int]:
        """An option as it follows a prompt: behind a space in texts, at the beginning of a message in chats."""
        return self.tokenizer.encode(option if self.chat else f" {option}", special=False).ids


def _batches(lengths: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Rows of similar length together, so that little is padded."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    return [(at, order[at : at + ROWS]) for at in range(0, len(order), ROWS)]


def _has_template(pretrained: Pretrained) -> bool:
    try:
        template(tokenizer_of(pretrained))
    except Unsupported:
        return False
    return True


__all__ = ["Fitted", "Speaker"]
