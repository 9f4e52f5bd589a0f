"""Generate text with a pretrained model: continue prompts or, with an encoder–decoder, rewrite a source."""

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

DEFAULT_NEW = 100  # new tokens if the user gives no number and the model has room


@dataclass(frozen=True)
class GeneratedText:
    """A generated text, and why it ended."""

    text: str
    tokens: list[int]
    logprob: float  # of all tokens, by the model itself
    reason: str  # "end" (an end token), "stop" (a stop string) or "length"


def generate(
    pretrained: Pretrained,
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
    """Continue each prompt: `sampling.samples` or `beam.n_best` texts; an encoder–decoder reads prompts as sources.

    Without `sampling` and `beam`, an encoder–decoder follows its generation_config.json (beams, lengths, bans), and a
    decoder is greedy. Texts have up to `max_new` tokens (default: the folder's number, 100, or what the model has room
    for), and end at the folder's end tokens or at a `stop` string. With `special`, names of special tokens in a prompt
    are those tokens. With `chat`, a prompt is a user's message, after the `system` message, and the text is the
    answer. A prompt that leaves no room is refused or, with `truncate`, loses its beginning.

    A text that outgrows the model's length continues with a sliding window or, if the model has no position table,
    from its state (see `decode.generate`); a `Notice` says so. Without `slide` it is refused.

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
    requests = [  # all are checked before any work
        _Request(pretrained, group, max_new, special, truncate, chat, system, slide) for group in groups
    ]
    _notify(requests)
    results: list[list[GeneratedText]] = []
    for request in requests:
        how = beam or sampling or request.default
        results.extend(request.search(how, stop) if isinstance(how, Beam) else request.sample(how, stop))
        if progress is not None:
            progress(len(results))
    return results


def stream(
    pretrained: Pretrained,
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
    """Like `generate` for one prompt, piece by piece; greedy without `sampling`."""
    request = _Request(pretrained, [prompt], max_new, special, truncate, chat, system, slide)
    _notify([request])
    return decode.stream(
        request.model,
        request.prompts[0],
        max_new=request.new,
        sampling=GREEDY if sampling is None else sampling,
        eos=request.ends,
        stop=stop,
        tokenizer=request.spell,
        source=None if request.sources is None else request.sources[0],
        slide=request.slide,
    )


def _notify(requests: Sequence["_Request"]) -> None:
    """Warns once that texts may outgrow the model."""
    outgrown = [request for request in requests if request.slide and request.outgrows]
    if outgrown:
        warn(slide_notice(outgrown[0].model), Notice, stacklevel=3)


def slide_notice(model: CausalModel) -> str:
    """The warning for texts that outgrow a model."""
    most = model.max_length
    past = f"each further token sees the last {most}" if model.fixed_length else "it continues from its state"
    return f"the text may outgrow the {most} tokens that this {model.name} is made for; past them, {past}"


class _Request:
    """One batch of prompts as ids, with the number of new tokens and the tokens that end a text."""

    def __init__(
        self,
        pretrained: Pretrained,
        prompts: Sequence[str],
        new: int | None,
        special: bool,
        truncate: bool,
        chat: bool,
        system: str | None,
        slide: bool,
    ) -> None:
        model = pretrained.model
        if not isinstance(model, CausalModel):
            raise Unsupported(
                f"this {pretrained.family or model.name} reads texts and writes none; it can fill or embed"
            )
        self.model, tokenizer = model, tokenizer_of(pretrained)
        self.slide = slide
        allow = list(tokenizer.specials) if special else []
        self.ends = ends_of(pretrained, tokenizer)
        self.spell = _spelling(tokenizer, fresh=model.reads_source or chat)
        if chat and (special or truncate or model.reads_source):
            other = "special" if special else "truncate" if truncate else "a source"
            raise InvalidOption(f"a chat has its own beginning and its own special tokens; it goes without {other}")
        if system is not None and not chat:
            raise InvalidOption("system is for chats; give chat as well (--chat)")
        self.sources: list[list[int]] | None = None
        self.default: Sampling | Beam = GREEDY
        default_new = DEFAULT_NEW
        if model.reads_source:
            how = generation_config.translate(generation_config.settings(pretrained.config, pretrained.generation))
            self.default = how.search if isinstance(how.search, Beam) else greedy(how.search)
            default_new = how.max_new or DEFAULT_NEW
            encoded = read_texts(pretrained, prompts, truncate="right" if truncate else None, allow=allow)
            self.sources, begin = [text.ids for text in encoded], begin_of(pretrained, tokenizer)
            self.prompts = [begin] * len(prompts)
        elif chat:
            begin_with: list[Message] = [] if system is None else [{"role": "system", "content": system}]
            self.prompts = [
                encode_chat(tokenizer, [*begin_with, {"role": "user", "content": prompt}]) for prompt in prompts
            ]
        else:
            longest = None
            if truncate and model.max_length is not None:
                longest = model.max_length - (DEFAULT_NEW if new is None else new)
                if longest < 1:
                    longest = model.max_length - 1 if new is None else _no_room(new, model.max_length)
            self.prompts = [_open(pretrained, tokenizer, text, allow, longest) for text in prompts]
        room = None if model.max_length is None else model.max_length - max(map(len, self.prompts))
        self.new = new if new is not None else default_new if room is None else max(1, min(default_new, room))

    @property
    def outgrows(self) -> bool:
        """Whether texts may become longer than the model's length and the model can continue."""
        most, longest = self.model.max_length, max(map(len, self.prompts))
        if most is None or self.model.reads_source or longest + self.new <= most:
            return False
        return longest <= most or not self.model.fixed_length

    def sample(self, sampling: Sampling, stop: Sequence[str]) -> list[list[GeneratedText]]:
        generated = decode.generate(
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
        assert generated.texts is not None
        rows = [
            GeneratedText(text, tokens, sum(chances), reason)
            for text, tokens, chances, reason in zip(
                generated.texts, generated.tokens, generated.logprobs, generated.reasons
            )
        ]
        size = sampling.samples
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def search(self, beam: Beam, stop: Sequence[str]) -> list[list[GeneratedText]]:
        options = beam if beam.max_new is not None else replace(beam, max_new=self.new)
        hypotheses = decode.beam_search(
            self.model, self.prompts, options=options, eos=self.ends, source=self.sources, slide=self.slide
        )
        return [[self._to_text(hypothesis, stop) for hypothesis in row] for row in hypotheses]

    def _to_text(self, hypothesis: decode.Hypothesis, stop: Sequence[str]) -> GeneratedText:
        tokens = hypothesis.tokens[:-1] if hypothesis.finished else hypothesis.tokens
        stops = StopStrings(stop)
        text, stopped = stops.push(self.spell(tokens))
        reason = "stop" if stopped else "end" if hypothesis.finished else "length"
        full = text if stopped else text + stops.finish()
        return GeneratedText(full, hypothesis.tokens, hypothesis.logprob, reason)


def _no_room(new: int, most: int) -> int:
    raise InvalidInput(f"{new} new tokens leave no room for a prompt in the {most} that the model holds")


def _open(
    pretrained: Pretrained, tokenizer: Tokenizer, prompt: str, allow: Sequence[str], longest: int | None
) -> list[int]:
    """The ids of a prompt, without the end tokens that a tokenizer adds; a separator (see `translate`) stays."""
    if longest is None:
        text = tokenizer.encode(prompt, allow=allow)
    else:
        (text,) = tokenizer.encode_many([prompt], allow=allow, longest=longest, truncate="left")
    ids, last = list(text.ids), {tokenizer.eos, tokenizer.sep} - {tokenizer.bos, tokenizer.cls}
    while len(ids) > 1 and text.added[len(ids) - 1] and ids[-1] in last:
        ids.pop()
    if ids:
        return ids
    first = _setting(pretrained, "bos_token_id")
    begin = tokenizer.bos if first is None else first
    if begin is None:
        raise InvalidInput("an empty prompt needs a token that texts begin with, and this model names none")
    return [int(begin)]


def begin_of(pretrained: Pretrained, tokenizer: Tokenizer) -> list[int]:
    """The first ids for the decoder of an encoder–decoder."""
    start = _setting(pretrained, "decoder_start_token_id")
    if start is None:
        start = getattr(pretrained.model.options, "start", None)
    if start is None:
        start = tokenizer.cls if tokenizer.bos is None else tokenizer.bos
    if start is None:
        raise InvalidInput("nothing says what texts begin with; config.json needs decoder_start_token_id")
    forced = _setting(pretrained, "forced_bos_token_id")
    return [int(start)] if forced is None else [int(start), int(forced)]


def ends_of(pretrained: Pretrained, tokenizer: Tokenizer) -> list[int]:
    """The ids that end a text, without those that the model has no row for."""
    configured = _setting(pretrained, "eos_token_id")
    default = tokenizer.sep if tokenizer.eos is None else tokenizer.eos
    listed = [default if configured is None else configured] if not isinstance(configured, list) else configured
    assert isinstance(pretrained.model, CausalModel)
    return [int(token) for token in listed if token is not None and token < pretrained.model.vocabulary]


def _setting(pretrained: Pretrained, key: str) -> Any:
    return generation_config.settings(pretrained.config, pretrained.generation).get(key, pretrained.config.get(key))


def greedy(sampling: Sampling) -> Sampling:
    """The same options without randomness."""
    return replace(sampling, temperature=0.0, top_k=None, top_p=1.0, min_p=0.0, samples=1)


def _spelling(tokenizer: Tokenizer, *, fresh: bool) -> Callable[[list[int]], str]:
    """A function from new ids to text; in a continuation, the first word keeps its leading space."""
    before = tokenizer.encode("a", special=False).ids
    text = tokenizer.decode(before)
    if fresh or text != "a":
        return tokenizer.decode
    return lambda ids: tokenizer.decode([*before, *ids])[1:]


__all__ = ["GeneratedText", "begin_of", "ends_of", "generate", "stream"]
