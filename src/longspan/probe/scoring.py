"""Log-probabilities of tokens of a sentence, by masked and by causal language models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from longspan import decode
from longspan.data import Encoded
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import CausalModel, TextHeads

Kind = Literal["masked", "causal"]
Tell = Callable[[str], None]
ROWS = 32  # sentences read at once


def quiet(_: str) -> None:
    """For callers that show no progress."""


@dataclass(frozen=True)
class Sentence:
    """A sentence as tokens, without the ones that the tokenizer puts around it."""

    text: str
    ids: tuple[int, ...]
    encoded: Encoded

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Request:
    """Tokens of a sentence to score, by their index; `hidden` are masked besides, for masked models."""

    sentence: Sentence
    index: int
    hidden: tuple[int, ...] = ()


class LanguageScorer:
    """Scores sentences with the model that is there: a masked head if it has one, or else from left to right."""

    def __init__(self, pretrained: Pretrained, kind: Kind | None = None) -> None:
        model = pretrained.model
        abilities: list[Kind] = []
        if isinstance(model, TextHeads) and "masked" in model.heads:
            abilities.append("masked")
        if isinstance(model, CausalModel) and not model.reads_source:
            abilities.append("causal")
        name = pretrained.family or model.name
        if not abilities:
            raise Unsupported(f"this {name} predicts no tokens; give a masked or a causal language model")
        if kind is not None and kind not in abilities:
            raise Unsupported(f"this {name} is no {kind} language model; use --kind {abilities[0]}")
        self.pretrained, self.tokenizer = pretrained, tokenizer_of(pretrained)
        self.kind: Kind = abilities[0] if kind is None else kind
        if self.kind == "masked" and self.tokenizer.mask is None:
            raise Unsupported("this tokenizer has no token for masks; give a causal model")
        start = self.tokenizer.bos if self.tokenizer.bos is not None else self.tokenizer.eos
        if self.kind == "causal" and start is None:
            raise Unsupported("this tokenizer has no token that begins or ends texts, so first tokens have no score")
        self.start = start

    def read(self, texts: Sequence[str]) -> list[Sentence]:
        """Sentences as tokens; a text that is too long for the model is an error."""
        return [
            Sentence(text, tuple(i for i, extra in zip(each.ids, each.added) if not extra), each)
            for text, each in zip(texts, read_texts(self.pretrained, texts))
        ]

    def token_logprobs(self, sentences: Sequence[Sentence], tell: Tell = quiet) -> list[list[float]]:
        """For each sentence the log-probability of each of its tokens.

        Causal: given the tokens before it. Masked: given all others, with this one masked (pseudo-log-likelihood).
        """
        if self.kind == "masked":
            requests = [Request(each, index) for each in sentences for index in range(len(each))]
            scores = iter(self.masked_logprobs(requests, tell))
            return [[next(scores) for _ in each.ids] for each in sentences]
        model = self.pretrained.model
        assert isinstance(model, CausalModel) and self.start is not None
        results: list[list[float]] = [[] for _ in sentences]
        order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
        for begin in range(0, len(order), ROWS):
            rows = order[begin : begin + ROWS]
            tell(f"scored {begin:,} of {len(order):,} sentences")
            found = decode.score(model, [[self.start]] * len(rows), [sentences[row].ids for row in rows])
            for row, logprobs in zip(rows, found):
                results[row] = logprobs.tolist()
        return results

    @torch.inference_mode()
    def masked_logprobs(self, requests: Sequence[Request], tell: Tell = quiet) -> list[float]:
        """The log-probability of one token of each request, with it (and the hidden ones) masked."""
        model, mask = self.pretrained.model, self.tokenizer.mask
        if self.kind != "masked" or not isinstance(model, TextHeads) or mask is None:
            raise Unsupported("masks are for masked language models; this one is read from left to right")
        results = [0.0] * len(requests)
        order = sorted(range(len(requests)), key=lambda row: len(requests[row].sentence))
        model.eval()
        for begin in range(0, len(order), ROWS):
            rows = order[begin : begin + ROWS]
            tell(f"scored {begin:,} of {len(order):,} masked tokens")
            batch = self.tokenizer.pad_batch(
                [requests[row].sentence.encoded for row in rows], padding=getattr(model.options, "padding", None)
            )
            ids, chosen, truth = batch.ids.clone(), torch.zeros_like(batch.mask), []
            for at, row in enumerate(rows):
                request = requests[row]
                places = [place for place, extra in enumerate(request.sentence.encoded.added) if not extra]
                for index in (request.index, *request.hidden):
                    ids[at, places[index]] = mask
                chosen[at, places[request.index]] = True
                truth.append(request.sentence.ids[request.index])
            device = model.device
            logits = model.outputs(ids.to(device), key_mask=batch.mask.to(device), chosen=chosen.to(device))["masked"]
            scores = logits.float().log_softmax(-1)[torch.arange(len(rows)), torch.tensor(truth)]
            for row, score in zip(rows, scores.tolist()):
                results[row] = score
        return results

    def word(self, text: str) -> int:
        """The id of a word that must be one token, as it stands inside a sentence."""
        sentence = self.read([f"they said {text}"])[0]
        before = self.read(["they said"])[0]
        if sentence.ids[: len(before)] != before.ids or len(sentence) != len(before) + 1:
            raise InvalidInput(
                f"{text!r} is more than one token for this tokenizer, and the probe compares single tokens"
            )
        return sentence.ids[-1]

    @torch.inference_mode()
    def next_logprobs(self, texts: Sequence[str], words: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of words after each text (causal), or at its `[MASK]` (masked)."""
        chosen = [self.word(each) for each in words]
        model = self.pretrained.model
        if self.kind == "masked":
            assert isinstance(model, TextHeads)
            special = self.tokenizer.special["mask"]
            encoded = read_texts(self.pretrained, [t.replace("[MASK]", special) for t in texts], allow=[special])
            batch = self.tokenizer.pad_batch(encoded, padding=getattr(model.options, "padding", None))
            spots = (batch.ids == self.tokenizer.mask) & batch.mask
            if spots.sum(1).tolist() != [1] * len(texts):
                raise InvalidInput("each template needs exactly one [MASK]")
            device = model.device
            outputs = model.outputs(batch.ids.to(device), key_mask=batch.mask.to(device), chosen=spots.to(device))
            return outputs["masked"].float().log_softmax(-1)[:, chosen].tolist()
        assert isinstance(model, CausalModel) and self.start is not None
        results = []
        for sentence in self.read([text.split("[MASK]")[0].rstrip() for text in texts]):
            pieces = decode.score(model, [[self.start, *sentence.ids]] * len(chosen), [[each] for each in chosen])
            results.append([piece.item() for piece in pieces])
        return results


__all__ = ["Kind", "LanguageScorer", "Request", "Sentence", "Tell", "quiet"]
