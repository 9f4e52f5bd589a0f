"""Text from a pretrained model: continuations of prompts or, by an encoder–decoder, what it makes of a source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from warnings import warn

from longspan import decode
from longspan.data import Tokenizer, encode_chat
from longspan.data.tokenizers.chat_template import Message
from longspan.decode import GREEDY, Beam, Piece, Sampling, StopStrings
from longspan.errors import InvalidInput, InvalidOption, Notice, Unsupported
from longspan.hub import generation_config
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import CausalModel

USUAL = 100  # new tokens, where nothing is said and the model holds them


@dataclass(frozen=True)
class GeneratedText:
    """What was generated."""

    text: str
    tokens: list[int]
    logprob: float  # of all tokens, by the model itself
    reason: str  # why it ended: "end", "stop" or "length"


def generate(
    found: Pretrained,
    prompts: Sequence[str],
    *,
    max_new: int | None = None,
    sampling: Sampling | None = None,
    beam: Beam | None = None,
    stop: Sequence[str] = (),
    special: bool = False,
    chat: bool = False,
    system: str | None = None,
    truncate: bool = False,
    slide: bool = True,
    batch: int = 8,
    progress: Callable[[int], None] | None = None,
) -> list[list[GeneratedText]]:
    """The texts that follow each prompt, `sampling.samples` or `beam.n_best` of them; an encoder–decoder reads prompts
    as sources.

    Without `sampling` and `beam`, an encoder–decoder writes as its folder says (generation_config.json: beams, lengths,
    bans), and a decoder greedily. Up to `max_new` tokens (what the folder says, or 100, or what the model has room
    for), ended by the ids that the folder says end a text, or by `stop` strings. With `special`, names of special
    tokens in a prompt are those tokens; with `chat`, a prompt is what a user says, after what the `system` says, and
    the text is the answer. A prompt that leaves no room is refused or, with `truncate`, loses its beginning.

    A text that outgrows the model's length goes on with a sliding window, or with the model's state where no table
    ends there (see `decode.generate`); a `Notice` says so. Without `slide` it is refused.

    >>> generate(hub.load("gpt2"), ["The capital of France is"], max_new=5)[0][0].text
    """
    if isinstance(prompts, str):
        raise InvalidInput("expected a list of prompts, got one text; put it in a list")
    if not prompts:
        raise InvalidInput("there are no prompts; give one at least")
    if batch < 1:
        raise InvalidOption(f"batch must be at least 1, not {batch}")
    StopStrings(stop)
    groups = [prompts[at : at + batch] for at in range(0, len(prompts), batch)]
    asked = [
        _Asked(found, group, max_new, special, truncate, chat, system, slide) for group in groups
    ]  # checked before any work
    _notify(asked)
    results: list[list[GeneratedText]] = []
    for each in asked:
        how = beam or sampling or each.usual
        results.extend(each.search(how, stop) if isinstance(how, Beam) else each.draw(how, stop))
        if progress is not None:
            progress(len(results))
    return results


def stream(
    found: Pretrained,
    prompt: str,
    *,
    max_new: int | None = None,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    special: bool = False,
    chat: bool = False,
    system: str | None = None,
    truncate: bool = False,
    slide: bool = True,
) -> Iterator[Piece]:
    """What `generate` gives for one prompt, as it comes; without `sampling`, greedily."""
    asked = _Asked(found, [prompt], max_new, special, truncate, chat, system, slide)
    _notify([asked])
    return decode.stream(
        asked.model,
        asked.prompts[0],
        max_new=asked.new,
        sampling=GREEDY if sampling is None else sampling,
        eos=asked.ends,
        stop=stop,
        tokenizer=asked.spell,
        source=None if asked.sources is None else asked.sources[0],
        slide=asked.slide,
    )


def _notify(asked: Sequence["_Asked"]) -> None:
    """Says once that texts may outgrow the model."""
    outgrown = [each for each in asked if each.slide and each.outgrows]
    if outgrown:
        warn(slide_notice(outgrown[0].model), Notice, stacklevel=3)


def slide_notice(model: CausalModel) -> str:
    """What happens to texts that outgrow a model."""
    most = model.max_length
    past = f"each further token sees the last {most}" if model.fixed_length else "it continues from its state"
    return f"the text may outgrow the {most} tokens that this {model.name} is made for; past them, {past}"


class _Asked:
    """Prompts as ids, with the room that they leave and what ends them."""

    def __init__(
        self,
        found: Pretrained,
        prompts: Sequence[str],
        new: int | None,
        special: bool,
        truncate: bool,
        chat: bool,
        system: str | None,
        slide: bool,
    ) -> None:
        model = found.model
        if not isinstance(model, CausalModel):
            raise Unsupported(f"this {found.family or model.name} reads texts and writes none; it can fill or embed")
        self.model, tokenizer = model, tokenizer_of(found)
        self.slide = slide
        allow = list(tokenizer.specials) if special else []
        self.ends = ends_of(found, tokenizer)
        self.spell = _spelling(tokenizer, fresh=model.reads_source or chat)
        if chat and (special or truncate or model.reads_source):
            other = "special" if special else "truncate" if truncate else "a source"
            raise InvalidOption(f"a chat has its own beginning and its own special tokens; it goes without {other}")
        if system is not None and not chat:
            raise InvalidOption("system is for chats; give chat as well (--chat)")
        self.sources: list[list[int]] | None = None
        self.usual: Sampling | Beam = GREEDY
        usual_new = USUAL
        if model.reads_source:
            how = generation_config.translate(generation_config.settings(found.config, found.generation))
            self.usual = how.search if isinstance(how.search, Beam) else greedy(how.search)
            usual_new = how.max_new or USUAL
            encoded = read_texts(found, prompts, truncate="right" if truncate else None, allow=allow)
            self.sources, begin = [text.ids for text in encoded], begin_of(found, tokenizer)
            self.prompts = [begin] * len(prompts)
        elif chat:
            begin_with: list[Message] = [] if system is None else [{"role": "system", "content": system}]
            self.prompts = [
                encode_chat(tokenizer, [*begin_with, {"role": "user", "content": prompt}]) for prompt in prompts
            ]
        else:
            longest = None
            if truncate and model.max_length is not None:
                longest = model.max_length - (USUAL if new is None else new)
                if longest < 1:
                    longest = model.max_length - 1 if new is None else _no_room(new, model.max_length)
            self.prompts = [_open(found, tokenizer, text, allow, longest) for text in prompts]
        room = None if model.max_length is None else model.max_length - max(map(len, self.prompts))
        self.new = new if new is not None else usual_new if room is None else max(1, min(usual_new, room))

    @property
    def outgrows(self) -> bool:
        """Whether texts may become longer than the model's length, and the model can go on."""
        most, longest = self.model.max_length, max(map(len, self.prompts))
        if most is None or self.model.reads_source or longest + self.new <= most:
            return False
        return longest <= most or not self.model.fixed_length

    def draw(self, sampling: Sampling, stop: Sequence[str]) -> list[list[GeneratedText]]:
        made = decode.generate(
            self.model,
            self.prompts,
            max_new=self.new,
            sampling=sampling,
            eos=self.ends,
            stop=stop,
            tokenizer=self.spell,
            source=self.sources,
            slide=self.slide,
        )
        assert made.texts is not None
        rows = [
            GeneratedText(text, tokens, sum(chances), reason)
            for text, tokens, chances, reason in zip(made.texts, made.tokens, made.logprobs, made.reasons)
        ]
        size = sampling.samples
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def search(self, beam: Beam, stop: Sequence[str]) -> list[list[GeneratedText]]:
        options = beam if beam.max_new is not None else replace(beam, max_new=self.new)
        found = decode.beam_search(
            self.model, self.prompts, options=options, eos=self.ends, source=self.sources, slide=self.slide
        )
        return [[self._said(each, stop) for each in hypotheses] for hypotheses in found]

    def _said(self, found: decode.Hypothesis, stop: Sequence[str]) -> GeneratedText:
        tokens = found.tokens[:-1] if found.finished else found.tokens
        stops = StopStrings(stop)
        text, stopped = stops.push(self.spell(tokens))
        reason = "stop" if stopped else "end" if found.finished else "length"
        return GeneratedText(text if stopped else text + stops.finish(), found.tokens, found.logprob, reason)


def _no_room(new: int, most: int) -> int:
    raise InvalidInput(f"{new} new tokens leave no room for a prompt in the {most} that the model holds")


def _open(found: Pretrained, tokenizer: Tokenizer, prompt: str, allow: Sequence[str], longest: int | None) -> list[int]:
    """A prompt to go on with: what a tokenizer puts behind whole texts is left out."""
    if longest is None:
        text = tokenizer.encode(prompt, allow=allow)
    else:
        (text,) = tokenizer.encode_many([prompt], allow=allow, longest=longest, truncate="left")
    ids, last = list(text.ids), {tokenizer.eos, tokenizer.sep}
    while len(ids) > 1 and text.added[len(ids) - 1] and ids[-1] in last:
        ids.pop()
    if ids:
        return ids
    first = _said(found, "bos_token_id")
    begin = tokenizer.bos if first is None else first
    if begin is None:
        raise InvalidInput("an empty prompt needs a token that texts begin with, and this model names none")
    return [int(begin)]


def begin_of(found: Pretrained, tokenizer: Tokenizer) -> list[int]:
    """What the decoder of an encoder–decoder begins with."""
    start = _said(found, "decoder_start_token_id")
    if start is None:
        start = tokenizer.cls if tokenizer.bos is None else tokenizer.bos
    if start is None:
        raise InvalidInput("nothing says what texts begin with; config.json needs decoder_start_token_id")
    forced = _said(found, "forced_bos_token_id")
    return [int(start)] if forced is None else [int(start), int(forced)]


def ends_of(found: Pretrained, tokenizer: Tokenizer) -> list[int]:
    """The ids that end a text; one that the model has no row for can never come."""
    said = _said(found, "eos_token_id")
    own = tokenizer.sep if tokenizer.eos is None else tokenizer.eos
    listed = [own if said is None else said] if not isinstance(said, list) else said
    assert isinstance(found.model, CausalModel)
    return [int(token) for token in listed if token is not None and token < found.model.vocabulary]


def _said(found: Pretrained, key: str) -> Any:
    return generation_config.settings(found.config, found.generation).get(key, found.config.get(key))


def greedy(sampling: Sampling) -> Sampling:
    """The same without its draws: a command gives the same text twice."""
    return replace(sampling, temperature=0.0, top_k=None, top_p=1.0, min_p=0.0, samples=1)


def _spelling(tokenizer: Tokenizer, *, fresh: bool) -> Callable[[list[int]], str]:
    """From new ids to text: of a text of its own, or of one that goes on, whose first word may need its space."""
    before = tokenizer.encode("a", special=False).ids
    text = tokenizer.decode(before)
    if fresh or text != "a":
        return tokenizer.decode
    return lambda ids: tokenizer.decode([*before, *ids])[1:]


__all__ = ["GeneratedText", "begin_of", "ends_of", "generate", "stream"]
