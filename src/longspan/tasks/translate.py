"""Translation from sentence to sentence, by any encoder–decoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from torch import Tensor

from longspan import files
from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.sets import named as named_sets
from longspan.data.text.joined_pairs import JoinedPairs
from longspan.data.text.parallel import Parallel, find_pair, read_pairs
from longspan.data.text.token_files import write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.template import with_template
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_inner
from longspan.decode import Beam, search_many
from longspan.errors import InvalidInput, InvalidOption, Unsupported, suggest
from longspan.hub.use.translate import SOURCE_TOKENIZER
from longspan.models.base import CausalModel, EncoderDecoder, Model
from longspan.nn.loss import CONVENTIONS, IGNORED, smoothed_cross_entropy
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.bleu import TOKENIZERS, Bleu, counter, start_of, written
from longspan.tasks.rouge import Rouge

Texts = tuple[list[str], list[str]]


@dataclass
class TranslationMetrics(Metrics):
    """Loss and accuracy over real target tokens and, if some were written, their BLEU or ROUGE."""

    nats: float
    right: int
    tokens: int
    sample: Bleu | Rouge | None = None

    def add(self, other: Metrics) -> None:
        assert isinstance(other, TranslationMetrics)
        self.nats, self.right, self.tokens = (
            self.nats + other.nats,
            self.right + other.right,
            self.tokens + other.tokens,
        )
        if self.sample is None:
            self.sample = other.sample
        elif other.sample is not None:
            self.sample.add(other.sample)

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.tokens, 1)
        metrics = {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "accuracy": self.right / max(self.tokens, 1)}
        return metrics if self.sample is None else {**metrics, **self.sample.sampled()}


class Translation(Objective):
    """The cross-entropy of the target with smoothed labels; held-out metrics are without smoothing.

    The first `sample` held-out sentences are translated greedily, and compared with their decoded targets.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        smoothing: float = 0.1,
        convention: str = "uniform",
        sample: int = 0,
        beam: Beam | None = None,
        tokenize: str = "13a",
    ) -> None:
        self.tokenizer, self.smoothing, self.convention = tokenizer, smoothing, convention
        self.sample, self.beam, self.tokenize = sample, beam or Beam(beams=5), tokenize

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        smoothed, plain = smoothed_cross_entropy(
            self._read(model, batch),
            batch["targets"],
            smoothing=self.smoothing,
            convention=self.convention,
            padding=self.tokenizer.pad,
        )
        parts = {"nll": plain.detach()}
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            count = self.count(batch)
            smoothed, parts["auxiliary"] = smoothed + extra * count, extra.detach() * count
        return TaskLoss(smoothed, parts)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[TranslationMetrics, Any]:
        logits, targets = self._read(model, batch), self._of_target(batch)
        _, plain = smoothed_cross_entropy(logits, targets)
        right = int(((logits.argmax(-1) == targets) & (targets != IGNORED)).sum())
        tokens = int((targets != IGNORED).sum())
        return TranslationMetrics(float(plain), right, tokens, self._sampled(model, batch)), None

    def final(self, model: Model, data: Data, batches: Sequence[Sequence[int]]) -> Bleu | Rouge | None:
        assert isinstance(data, Parallel)
        if not data.references:  # training data has no references
            return None
        numbers = [number for batch in batches for number in batch]
        return self._score(*written(self._model(model), data, self.tokenizer, beam=self.beam, numbers=numbers))

    def _score(self, texts: Sequence[str], references: Sequence[str]) -> Bleu | Rouge:
        """How near written texts are to their references."""
        return Bleu.of(texts, references, self.tokenize)

    def _read(self, model: Model, batch: Batch) -> Tensor:
        """The logits of the target. Its padding is on the right, where no real token reads it: it needs no mask."""
        mask, reader = batch["source_mask"], self._model(model)
        ids, start = batch["ids"], start_of(reader)
        if start is not None:
            ids = torch.cat([torch.full_like(ids[:, :1], start), ids[:, 1:]], 1)
        logits: Tensor = reader(batch["source"], ids, source_mask=None if bool(mask.all()) else mask)
        return logits

    def _model(self, model: Model) -> CausalModel:
        return EncoderDecoder.require(model, Translate.name)

    def _of_target(self, batch: Batch) -> Tensor:
        """The targets that metrics are over."""
        return batch["targets"]

    def _sources(self, batch: Batch, rows: Tensor) -> list[list[int]]:
        sources, masks = batch["source"][rows], batch["source_mask"][rows]
        return [source[mask].tolist() for source, mask in zip(sources, masks)]

    def _sampled(self, model: Model, batch: Batch) -> Bleu | Rouge | None:
        rows = batch["number"] < self.sample
        if not bool(rows.any()):
            return None
        begin, end = ends_of(self.tokenizer)
        reader, options = self._model(model), replace(self.beam, beams=1)
        start = start_of(reader)
        prompt = [begin if start is None else start]
        translations = search_many(reader, self._sources(batch, rows), prompt, end, options=options, tokens=4096)
        wanted = [[token for token in row if token != IGNORED] for row in self._of_target(batch)[rows].tolist()]
        texts = [self.tokenizer.decode(hypotheses[0].tokens).strip() for hypotheses in translations]
        references = [self.tokenizer.decode(ids).strip() for ids in wanted]
        return self._score(texts, references)


class JoinedTranslation(Translation):
    """Translation by a decoder that reads source, separator and target as one text (Liu et al. 2018).

    The loss is over all that the data give as targets; metrics are over the target alone.
    """

    def _read(self, model: Model, batch: Batch) -> Tensor:
        return self._model(model).text_logits(batch["ids"])

    def _model(self, model: Model) -> CausalModel:
        causal = CausalModel.require(model, Translate.name)
        if causal.reads_source:
            raise Unsupported(
                f"{model.name!r} reads the source by itself, and with form = 'joined' there is one text; "
                "choose a decoder, or form = 'pair'"
            )
        return causal

    def _of_target(self, batch: Batch) -> Tensor:
        return batch["targets"].masked_fill(~batch["of_target"], IGNORED)

    def _sources(self, batch: Batch, rows: Tensor) -> list[list[int]]:
        """What comes before the separator, which is the first token that predicts the target."""
        firsts = batch["of_target"][rows].int().argmax(1).tolist()
        return [ids[:first].tolist() for ids, first in zip(batch["ids"][rows], firsts)]


class Translate(Task):
    """Translation on a named set or on your own pairs: NAME.en and NAME.de, or a table with two columns."""

    name = "translate"
    starting_model = starting.TRANSFORMER
    starting_train = starting.PAIRS

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set; see `longspan data list`")
        source: str = option("en", "the source language: the ending of its file's name, or its column", column=True)
        target: str = option("de", "the target language", column=True)
        train: str | None = option(None, "the shared name of the two files, or a table, if no set is named")
        held_out: str | None = option(None, "held-out pairs; the end of the first unless given")
        test: str | None = option(None, "test pairs or, of a named set, the name of a test (2016, 2017, mscoco)")
        encoding: str | None = option(None, "encoding of the files; by their first bytes, or UTF-8, unless given")
        share: float = option(0.05, "share of the pairs to hold out, if held_out is not given", low=0, high=0.9)
        tokenizer: TokenizerOptions = option(TokenizerOptions, "the tokenizer to learn")
        form: str = option(
            "pair",
            "pair: source and target for an encoder–decoder; joined: source, separator and target as one text, for a "
            "decoder (Liu et al. 2018)",
            choices=("pair", "joined"),
        )
        source_loss: bool = option(True, "joined: whether the source is predicted too, as Liu et al. 2018 do")
        shared: bool = option(True, "whether both languages share a tokenizer, learned on both")
        max_tokens: int | None = option(None, "most tokens per batch and side, with padding; 4096", low=1)
        batch: int | None = option(None, "pairs per batch, instead of max_tokens", low=1)
        longest: int = option(
            256, "most tokens of a sentence (joined: of the whole text); longer pairs are not trained on", low=2
        )
        smoothing: float = option(0.1, "label smoothing", low=0, high=0.999)
        convention: str = option(
            "uniform",
            "tokens that it spreads to",
            choices=CONVENTIONS,
        )
        beams: int = option(5, "beams of the search for the final BLEU", low=1)
        alpha: float = option(0.6, "exponent of its length penalty", low=0)
        sample: int = option(0, "held-out sentences to translate greedily for BLEU at each evaluation", low=0)
        bleu: str = option("13a", "sacrebleu's tokenizer; none for tokenized texts", choices=TOKENIZERS)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        if options.max_tokens is not None and options.batch is not None:
            raise InvalidOption("[task] gives max_tokens or batch: one of the two")
        joined = options.form == "joined"
        if joined and not options.shared:
            raise InvalidOption("form = 'joined' reads both languages as one text: they share a tokenizer (shared)")
        counter(options.bleu)
        names, found = self._texts(folders)
        source, target = self._tokenizers(folders, found["train"], tokenizer)
        begin, end = ends_of(target)
        kind = partial(JoinedPairs, source_loss=options.source_loss) if joined else Parallel
        made: dict[str, Parallel] = {}
        for split, (firsts, seconds) in found.items():
            ids = [text.ids for text in source.encode_many(firsts, special=not joined)]
            wanted = [text.ids for text in target.encode_many(seconds, special=False)]
            made[split] = kind(
                write_tokens(folders.work / f"{split}-source", ids, vocabulary=source.size),
                write_tokens(folders.work / f"{split}-target", wanted, vocabulary=target.size),
                begin=begin,
                end=end,
                padding=target.pad or 0,
                batch=options.batch,
                max_tokens=4096 if options.max_tokens is None and options.batch is None else options.max_tokens,
                longest=options.longest if split == "train" else None,
                seed=folders.seed,
                shuffle=split == "train",
                references=() if split == "train" else seconds,
                name=names[split],
            )
        objective = (JoinedTranslation if joined else Translation)(
            target,
            smoothing=options.smoothing,
            convention=options.convention,
            sample=options.sample,
            beam=Beam(beams=options.beams, alpha=options.alpha),
            tokenize=options.bleu,
        )
        needs: dict[str, Any] = {"vocabulary": target.size, "padding": target.pad}
        if source is not target:
            needs["source_vocabulary"] = source.size
        return Prepared(
            made["train"],
            made["held_out"],
            objective,
            made.get("test"),
            target,
            needs=needs,
            facts={**_facts(made, source, target), **self._held_out(made)},
        )

    def _held_out(self, made: dict[str, Parallel]) -> dict[str, str]:
        if self.options.set is not None or self.options.held_out is not None:
            return {}
        count = len(made["held_out"])
        return {"held out": f"the last {count:,} of {count + made['train'].lengths.shape[1]:,} pairs"}

    def _tokenizers(self, folders: DataPaths, texts: Texts, given: Tokenizer | None) -> tuple[Tokenizer, Tokenizer]:
        options = self.options
        if options.shared:
            both = learn(options.tokenizer, [*texts[0], *texts[1]]) if given is None else given
            if options.form == "joined":
                both = _separating(both)
            elif given is None:
                both = ending_texts(both)
            ends_of(both)
            return both, both
        # A pretrained model brings the target's tokenizer; the source's is in the work folder.
        path = folders.work / SOURCE_TOKENIZER
        if given is not None and path.is_file():
            return Tokenizer(read_inner(path), given.special), given
        source = ending_texts(learn(options.tokenizer, texts[0]))
        target = ending_texts(learn(options.tokenizer, texts[1])) if given is None else given
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, source.to_json())
        return source, target

    def _texts(self, folders: DataPaths) -> tuple[dict[str, str], dict[str, Texts]]:
        """The names of each split's files, and its sentences."""
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or files to train on: one of the two")
        paths = self._of_set(options.set, folders) if options.set is not None else self._of_files()
        names = {split: str(source) for split, (source, _) in paths.items()}
        columns = options.source, options.target
        texts = {split: read_pairs(*pair, columns, options.encoding) for split, pair in paths.items()}
        if "held_out" not in texts:
            firsts, seconds = texts["train"]
            cut = round(len(firsts) * (1 - options.share))
            if not 0 < cut < len(firsts):
                raise InvalidInput(f"{names['train']} has {len(firsts)} pairs, too few to hold some out")
            texts["train"], texts["held_out"] = (firsts[:cut], seconds[:cut]), (firsts[cut:], seconds[cut:])
            names["held_out"] = f"the end of {names['train']}"
        return names, texts

    def _of_files(self) -> dict[str, tuple[Path, Path]]:
        options = self.options
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        return {
            split: find_pair(name, options.source, options.target) for split, name in given.items() if name is not None
        }

    def _of_set(self, name: str, folders: DataPaths) -> dict[str, tuple[Path, Path]]:
        options = self.options
        files = named_sets.files(name, folders.data)
        languages = sorted({split.rpartition(".")[2] for split in files if "." in split})
        if not languages:
            raise InvalidInput(f"{name} is not a set of pairs; `longspan data list` says what each set is for")
        for language in (options.source, options.target):
            if language not in languages:
                raise InvalidOption(f"{name} has no language {language!r}: {suggest(language, languages)}")
        tests = {split.partition(".")[0].partition("_")[2]: split for split in files if split.startswith("test")}
        chosen = next(iter(tests)) if options.test is None else options.test
        if chosen not in tests:
            raise InvalidOption(f"{name} has no test {chosen!r}: {suggest(chosen, tests)}")
        splits = {"train": "train", "held_out": "held_out", "test": tests[chosen].partition(".")[0]}
        return {
            split: (files[f"{prefix}.{options.source}"], files[f"{prefix}.{options.target}"])
            for split, prefix in splits.items()
        }


def ends_of(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids that a target begins and ends with."""
    begin = tokenizer.cls if tokenizer.bos is None else tokenizer.bos
    begin = tokenizer.pad if begin is None else begin  # as T5 does
    end = tokenizer.sep if tokenizer.eos is None else tokenizer.eos
    if begin is None or end is None or tokenizer.pad is None:
        raise InvalidOption(
            "targets need tokens for beginning, end and padding, and the tokenizer lacks one of them; "
            "learn it with special = true"
        )
    return begin, end


def ending_texts(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, changed so that texts end with the end token; its file keeps this."""
    _, end = ends_of(tokenizer)
    if tokenizer.cls is None:
        token = tokenizer.token(end)
        tokenizer.inner.post_processor = processors.TemplateProcessing(
            single=f"$A {token}", pair=f"$A {token} $B:1 {token}:1", special_tokens=[(token, end)]
        )
    return tokenizer


def _separating(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, changed so that a text ends with the separator, after which its translation is written."""
    begin = tokenizer.token(ends_of(tokenizer)[0])
    return with_template(tokenizer, [begin], single=f"$A:0 {begin}:0", pair=f"$A:0 {begin}:0 $B:0")


def _facts(made: dict[str, Parallel], source: Tokenizer, target: Tokenizer) -> dict[str, Any]:
    train = made["train"]
    facts: dict[str, Any] = {f"{split} pairs": len(data) for split, data in made.items()}
    left_out = train.lengths.shape[1] - len(train)
    if left_out:
        facts["train pairs left out, too long"] = left_out
    if isinstance(train, JoinedPairs):
        facts["tokens"] = int(train.lengths[0, train.kept].sum())
    else:
        facts["source tokens"], facts["target tokens"] = (int(side[train.kept].sum()) for side in train.lengths)
    facts["batches of an epoch"] = len(train.batches(0))
    facts["padding"] = round(train.padded(), 4)
    facts["vocabulary"] = target.size
    if source is not target:
        facts["source vocabulary"] = source.size
    return facts


__all__ = ["JoinedTranslation", "Translate", "Translation", "TranslationMetrics", "ending_texts", "ends_of"]
