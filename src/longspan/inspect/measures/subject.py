"""What is measured: a model, and passages of a text as it reads them."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import longest_text, tokenizer_of
from longspan.inspect.head_masks import AttentionGroup, attention_groups
from longspan.models.base import CausalModel, EncoderDecoder, Model, TextStates
from longspan.nn.recorder import Recording, recording

LEAST = 32  # tokens of a text
LONG = 4  # the long passage, in passages


@dataclass(frozen=True)
class Passages:
    """Token ids (rows, length); an encoder–decoder reads them and writes `targets`."""

    ids: Tensor
    targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def row(self, index: int) -> "Passages":
        rows = slice(index, index + 1)
        return Passages(self.ids[rows], None if self.targets is None else self.targets[rows])

    def first(self, length: int) -> "Passages":
        """The first tokens of each row."""
        return Passages(self.ids[:, :length], None if self.targets is None else self.targets[:, :length])


class Subject:
    """A model and a text. `passages` are up to `texts` pieces of `length` tokens, spread over the text; `long` is
    its beginning, of four times as many.

    Each passage has the special tokens around it that the tokenizer adds to a text. An encoder–decoder writes `pair`,
    or the text itself.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        text: str,
        *,
        pair: str | None = None,
        length: int = 128,
        texts: int = 8,
        seed: int = 0,
    ) -> None:
        if length < LEAST // 2:
            raise InvalidOption(f"length must be at least {LEAST // 2} tokens, not {length}")
        if texts < 2:
            raise InvalidOption(f"texts must be at least 2, so that one half can control the other, not {texts}")
        self.pretrained, self.model, self.seed = pretrained, pretrained.model.eval(), seed
        if not isinstance(self.model, (CausalModel, TextStates)):
            raise Unsupported(
                f"measures read texts with an encoder, a decoder or an encoder–decoder, and this is {self.model.name!r}"
            )
        if pair is not None and not isinstance(self.model, EncoderDecoder):
            raise InvalidOption(f"a target text is for an encoder–decoder, and this is {self.model.name!r}")
        self.tokenizer = tokenizer_of(pretrained)
        self.before, self.after = self._around()
        most = longest_text(pretrained)
        self.passages = self._cut(text, pair, length if most is None else min(length, most), texts)
        rows = self._content(text.strip())
        room = LONG * length if most is None else min(LONG * length, most)
        self.long = self._passage(rows, min(len(rows), room - self._extra), self._content(pair) if pair else None)

    @property
    def _extra(self) -> int:
        return len(self.before) + len(self.after)

    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        encoded = self.tokenizer.encode("a")
        inside = [index for index, added in enumerate(encoded.added) if not added]
        first, last = (inside[0], inside[-1] + 1) if inside else (len(encoded), len(encoded))
        return encoded.ids[:first], encoded.ids[last:]

    def _content(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=False).ids if text.strip() else []

    def _paragraphs(self, text: str) -> list[int]:
        """The tokens that begin a paragraph: the first after an empty line."""
        begins = [0, *(match.end() for match in re.finditer(r"\n\s*\n\s*(?=\S)", text))]
        offsets = [start for start, _ in self.tokenizer.encode(text, special=False).offsets]
        return [bisect_left(offsets, begin) for begin in begins]

    def _cut(self, text: str, pair: str | None, length: int, texts: int) -> Passages:
        text = text.strip()
        ids = self._content(text)
        if not ids:
            raise InvalidInput("the text is empty; give some sentences")
        if len(ids) < LEAST:
            raise InvalidInput(f"the text has {len(ids)} tokens, and measures need at least {LEAST}; give a longer one")
        size = min(length - self._extra, len(ids) // 2)
        rows = [ids[start : start + size] for start in _starts(len(ids), size, texts, self._paragraphs(text))]
        targets = None
        if pair is not None:
            wanted = self._content(pair)
            count = min(len(wanted) // len(rows), length - self._extra)
            if count < LEAST // 2:
                raise InvalidInput(
                    f"the target text has {len(wanted)} tokens for {len(rows)} passages; give one about as long as the "
                    "source, or fewer texts"
                )
            targets = torch.stack([self._wrap(wanted[i * count : (i + 1) * count]) for i in range(len(rows))])
        return self._with_targets(torch.stack([self._wrap(row) for row in rows]), targets)

    def _passage(self, ids: list[int], size: int, target: list[int] | None) -> Passages:
        wanted = None if target is None else self._wrap(target[:size])[None]
        return self._with_targets(self._wrap(ids[:size])[None], wanted)

    def _with_targets(self, ids: Tensor, targets: Tensor | None) -> Passages:
        if not isinstance(self.model, EncoderDecoder):
            return Passages(ids)
        return Passages(ids, ids if targets is None else targets)

    def _wrap(self, ids: list[int]) -> Tensor:
        return torch.tensor([*self.before, *ids, *self.after], device=self.model.device)

    # Reading

    def run(self, passages: Passages, model: Model | None = None) -> Tensor:
        """A pass over all layers; gives the logits, or the states of a model without."""
        model = self.model if model is None else model
        out: Tensor
        if isinstance(model, EncoderDecoder):
            assert passages.targets is not None
            out = model(passages.ids, passages.targets)
        elif isinstance(model, CausalModel):
            out = model.text_logits(passages.ids)
        else:
            assert isinstance(model, TextStates)
            out = model.text_states(passages.ids)
        return out

    @cached_property
    def groups(self) -> list[AttentionGroup]:
        """Self-attention and cross-attention, bottom up."""
        return attention_groups(self.model)

    def check_attention(self) -> None:
        """Refuses a model without attention layers."""
        if not self.groups:
            raise Unsupported(f"{self.model.name!r} has no attention layers, so there are no heads to measure")

    @torch.no_grad()
    def record(
        self, passages: Passages, model: Model | None = None, *, maps: bool = True
    ) -> list[tuple[AttentionGroup, Recording]]:
        """The states and maps of a pass, for each group of attention layers."""
        groups = self.groups if model is None else attention_groups(model)
        with ExitStack() as stack:
            bodies = {group.body: stack.enter_context(recording(group.body, maps=maps)) for group in groups}
            self.run(passages, model)
        return [(group, bodies[group.body]) for group in groups]

    def maps(self, passages: Passages, model: Model | None = None) -> dict[str, Tensor]:
        """The maps of each group on the first row: (layers, heads, queries, keys)."""
        found = {}
        for group, seen in self.record(passages.row(0), model):
            layers = seen.maps if group.kind == "self" else seen.cross_maps
            found[group.name] = torch.stack([each[0] for each in layers]).float()
        return found

    # Controls

    @cached_property
    def untrained(self) -> Model:
        """A model of the same options with new random weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            fresh: Model = type(self.model)(self.model.options)
        return fresh.to(self.model.device, self.model.dtype).eval()

    def shuffled(self, passages: Passages) -> Passages:
        """The same tokens in another order; the special tokens around them stay."""
        generator = torch.Generator().manual_seed(self.seed)

        def mix(ids: Tensor) -> Tensor:
            first, last = len(self.before), ids.shape[1] - len(self.after)
            order = torch.randperm(last - first, generator=generator).to(ids.device) + first
            return torch.cat([ids[:, :first], ids[:, order], ids[:, last:]], 1)

        return Passages(mix(passages.ids), None if passages.targets is None else mix(passages.targets))

    # Names

    def tokens(self, ids: Tensor) -> list[str]:
        """Each token as text, for labels."""
        return [self.tokenizer.token(int(number)) for number in ids]

    def special(self, ids: Tensor) -> dict[str, Tensor]:
        """Where each special token is, by its name, if it occurs in these ids."""
        places = {name: ids == number for name, number in self.tokenizer.specials.items()}
        return {name: mask for name, mask in places.items() if bool(mask.any())}


def _starts(total: int, size: int, most: int, paragraphs: list[int]) -> list[int]:
    """Where passages of `size` begin: spread over the text, at the beginning of a paragraph if one is near."""
    count = min(most, total // size)
    even = [index * (total - size) // max(count - 1, 1) for index in range(count)]
    starts: list[int] = []
    for start in even:
        begun = paragraphs[bisect_right(paragraphs, start) - 1]
        starts.append(begun if start - begun < size and begun not in starts else start)
    return starts


@contextmanager
def captured_embeddings(model: Model, change: Any = None) -> Iterator[list[Tensor]]:
    """Collects what each embedding layer gives, as leaves that receive gradients; `change` edits them first."""
    from longspan.nn.embedding import TokenEmbedding

    taken: list[Tensor] = []

    def hook(_: nn.Module, args: Any, out: Tensor) -> Tensor:
        leaf = (out if change is None else change(out)).detach().requires_grad_(torch.is_grad_enabled())
        taken.append(leaf)
        return leaf

    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, TokenEmbedding)]
    try:
        yield taken
    finally:
        for handle in handles:
            handle.remove()


__all__ = ["LEAST", "Passages", "Subject", "captured_embeddings"]
