"""An ensemble: the predictions of several models, averaged at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import CausalModel, Ids, Logits, Mask, Streams


@dataclass(frozen=True)
class EnsembleState(State):
    """The states of the members."""

    members: tuple[Any, ...]
    alignment: Tensor | None = None  # mean over the members


class Ensemble(CausalModel):
    """The mean of the members' log-probabilities, or with `average="probability"` the log of their mean probability.

    Both serve as logits; decoding normalises them.

    >>> beam_search(Ensemble([first, second]), source=source, bos=1, eos=2)
    """

    name = "ensemble"
    paper = "Sutskever et al. 2014, section 3.6"

    def __init__(self, members: Sequence[CausalModel], *, average: str = "log") -> None:
        super().__init__(None)
        if not members or average not in ("log", "probability"):
            raise InvalidInput('an ensemble needs at least one member, and average must be "log" or "probability"')
        for what in ("vocabulary", "reads_source"):
            values = [getattr(member, what) for member in members]
            if len(set(values)) > 1:
                raise InvalidInput(f"the members of an ensemble must have the same {what}, not {values}")
        self.members = nn.ModuleList(members)
        self.average = average
        self.vocabulary, self.reads_source = members[0].vocabulary, members[0].reads_source
        self.left_padding = all(member.left_padding for member in members)
        self.fixed_length = any(member.fixed_length for member in members if member.max_length is not None)
        self.max_length = min((m.max_length for m in members if m.max_length is not None), default=None)

    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> EnsembleState:
        states = [
            member.start(batch, source=source, source_mask=source_mask, source_streams=source_streams, align=align)
            for member in self._members()
        ]
        return EnsembleState(tuple(states))

    def extend(
        self,
        ids: Ids,
        state: EnsembleState,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
        beyond: bool = False,
    ) -> tuple[Logits, EnsembleState]:
        logprobs, states = [], []
        for member, before in zip(self._members(), state.members):
            past = {"beyond": True} if beyond and member.max_length is not None else {}
            logits, after = member.extend(ids, before, key_mask=key_mask, positions=positions, last=last, **past)
            logprobs.append(logits.log_softmax(-1))
            states.append(after)
        stacked = torch.stack(logprobs)
        # The sum instead of the mean probability: a constant factor does not matter.
        logits = stacked.mean(0) if self.average == "log" else stacked.logsumexp(0)
        aligned = [after.alignment for after in states if getattr(after, "alignment", None) is not None]
        return logits, EnsembleState(tuple(states), torch.stack(aligned).mean(0) if aligned else None)

    def save(self, folder: Any, *, tokenizer: str | None = None) -> None:
        raise Unsupported("an ensemble cannot be saved; save its members")

    def _members(self) -> list[Any]:
        return list(self.members)


__all__ = ["Ensemble"]
