"""What is attacked: a model with a fixed decoding, or any function from messages to texts."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longspan import files, hub
from longspan.data.json_lines import parse
from longspan.data.tokenizers.chat_template import render, template
from longspan.decode import GREEDY, Sampling
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import tokenizer_of
from longspan.models.base import CausalModel
from longspan.probe.scoring import Tell, quiet

Target = Callable[[Sequence[str]], list[list[str]]]  # for each message, one text or several samples


class ModelTarget:
    """A model that writes text: a chat if the tokenizer has a template, or else a continuation after "Answer:".

    One sample is greedy; several are drawn with temperature 0.7 from the seed.
    """

    def __init__(
        self, pretrained: Pretrained, *, max_new: int = 32, samples: int = 1, seed: int = 0, batch: int = 8
    ) -> None:
        model = pretrained.model
        name = pretrained.family or model.name
        if not isinstance(model, CausalModel):
            raise Unsupported(
                f"this {name} writes no text, so it cannot obey an attack; give a causal model, or measure it as a "
                "detector by `longspan probe detector`"
            )
        if samples < 1 or max_new < 1 or batch < 1:
            raise InvalidOption(f"samples, max_new and batch must be at least 1, not {samples}, {max_new} and {batch}")
        self.pretrained, self.tokenizer = pretrained, tokenizer_of(pretrained)
        self.max_new, self.samples, self.seed, self.batch = max_new, samples, seed, batch
        try:
            template(self.tokenizer)
            self.chat = not model.reads_source
        except Unsupported:
            self.chat = False

    @property
    def settings(self) -> dict[str, Any]:
        """What outputs depend on besides the message."""
        return {"max_new": self.max_new, "samples": self.samples, "seed": self.seed, "chat": self.chat}

    def __call__(self, messages: Sequence[str]) -> list[list[str]]:
        """Special tokens in a message are plain text, whatever the message says."""
        return self._write(messages if self.chat else [f"{text}\n\nAnswer:" for text in messages], chat=self.chat)

    def pasted(self, messages: Sequence[str]) -> list[list[str]]:
        """The mistake of programs that paste messages into the template: special tokens in them are tokens."""
        if not self.chat:
            raise Unsupported("this tokenizer has no template for chats")
        texts = [render(self.tokenizer, [{"role": "user", "content": text}]) for text in messages]
        return self._write(texts, special=True)

    def _write(self, prompts: Sequence[str], *, chat: bool = False, special: bool = False) -> list[list[str]]:
        sampling = GREEDY
        if self.samples > 1:
            sampling = Sampling(temperature=0.7, samples=self.samples, seed=self.seed)
        written = hub.generate(
            self.pretrained,
            prompts,
            max_new=self.max_new,
            sampling=sampling,
            batch=max(1, self.batch // self.samples),
            chat=chat,
            special=special,
        )
        return [[each.text.strip() for each in texts] for texts in written]


class Answers:
    """The outputs of a target, each message asked once; kept in a file, so that an interrupted probe continues."""

    def __init__(
        self, target: Target, *, store: Path | None = None, settings: Any = None, batch: int = 8, tell: Tell = quiet
    ) -> None:
        self.target, self.batch, self.tell = target, batch, tell
        self.known: dict[str, list[str]] = {}
        self.store = store
        if store is not None:
            self._open(store, json.loads(json.dumps(settings)))

    def _open(self, store: Path, settings: Any) -> None:
        """Reads what an interrupted probe with the same settings wrote; refuses a file of other settings."""
        rows = store.read_bytes().split(b"\n") if store.is_file() else []
        for number, row in enumerate(filter(None, rows)):
            try:
                value = parse(row)
            except InvalidInput:
                continue  # the last line was cut short
            if number == 0 and value != {"settings": settings}:
                raise InvalidInput(f"{store} is of a probe with other settings; continue that one, or remove the file")
            if isinstance(value, dict) and isinstance(value.get("key"), str) and isinstance(value.get("texts"), list):
                self.known[value["key"]] = value["texts"]
        lines = [{"settings": settings}, *({"key": key, "texts": texts} for key, texts in self.known.items())]
        files.write_text(store, "".join(json.dumps(line) + "\n" for line in lines))

    def ask(self, messages: Sequence[str], what: str) -> list[list[str]]:
        """The outputs for each message; messages of like length are read together."""
        return self._ask(messages, what, self.target, "")

    def ask_pasted(self, messages: Sequence[str], what: str, target: Target) -> list[list[str]]:
        """The same with another way to read the message (`ModelTarget.pasted`)."""
        return self._ask(messages, what, target, "pasted")

    def _ask(self, messages: Sequence[str], what: str, target: Target, how: str) -> list[list[str]]:
        keys = [hashlib.sha256(f"{how}\0{text}".encode("utf-8", "surrogatepass")).hexdigest() for text in messages]
        missing = {key: text for key, text in zip(keys, messages) if key not in self.known}
        order = sorted(missing, key=lambda key: len(missing[key]))
        for begin in range(0, len(order), self.batch):
            self.tell(f"{what}: {begin:,} of {len(order):,} messages")
            chosen = order[begin : begin + self.batch]
            for key, texts in zip(chosen, target([missing[key] for key in chosen])):
                self.known[key] = list(texts)
                if self.store is not None:
                    with self.store.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": key, "texts": list(texts)}) + "\n")
        return [self.known[key] for key in keys]


__all__ = ["Answers", "ModelTarget", "Target"]
