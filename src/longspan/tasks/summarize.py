"""Summaries of texts, by any encoder–decoder: articles and their summaries from a table, measured by ROUGE."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.config import option
from longspan.data.text.corpora import SENTENCE
from longspan.data.text.headings import headed_paragraphs, is_wikitext
from longspan.data.text.parallel import Parallel
from longspan.data.text.tables import TableRow
from longspan.data.text.token_files import write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.decode import Beam
from longspan.errors import InvalidInput
from longspan.nn.loss import CONVENTIONS
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Prepared, Task
from longspan.tasks.rouge import Rouge, scorer_of_texts
from longspan.tasks.splits import hold_out
from longspan.tasks.text_inputs import TextTaskOptions, files, limited, read_rows, tokenizer_for, with_set
from longspan.tasks.translate import Translation, ending_texts, ends_of

LEADS = {"first sentence": 1, "first three sentences": 3}
BPE = TokenizerOptions(kind="bpe", size=8000)


class Summaries(Translation):
    """The cross-entropy of summaries; written ones are compared by ROUGE."""

    def _score(self, texts: Sequence[str], references: Sequence[str]) -> Rouge:
        return Rouge.of([_in_lines(text) for text in texts], [_in_lines(text) for text in references])


class Summarize(Task):
    """Summaries from a table with a column of texts and one of summaries, or from paragraphs of WikiText."""

    name = "summarize"
    starting_model = starting.TRANSFORMER
    starting_train = starting.PAIRS

    @dataclass(frozen=True, kw_only=True)
    class Options(TextTaskOptions):
        columns: tuple[str, ...] | None = option(None, "names of the columns, if the first line does not have them")
        text: str = option("text", "the column of the text", column=True)
        summary: str = option("summary", "the column of its summary", column=True)
        tokenizer: TokenizerOptions = option(BPE, "the tokenizer to learn, if no pretrained model has one")
        length: int = option(512, "most tokens of a text; the rest is cut off", low=4)
        summary_length: int = option(64, "most tokens of a summary; texts with longer ones are not trained on", low=2)
        prefix: str = option("", "put before every text, such as 'summarize: ' for T5")
        smoothing: float = option(0.1, "label smoothing", low=0, high=0.999)
        convention: str = option("uniform", "tokens that it spreads to", choices=CONVENTIONS)
        beams: int = option(4, "beams of the search for the final ROUGE", low=1)
        alpha: float = option(0.6, "exponent of its length penalty", low=0)
        no_repeat: int = option(0, "no run of this many tokens occurs twice in a summary; 0: no limit", low=0)
        sample: int = option(0, "held-out texts to summarise greedily for ROUGE at each evaluation", low=0)

    options: Options

    def suggest_model(self) -> Mapping[str, Any]:
        return {
            **self.starting_model,
            "source_length": self.options.length,
            "max_length": self.options.summary_length + 1,
        }

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = with_set(self.options, self.name)
        scorer_of_texts()
        paths = files(options, folders)
        tables = {split: self._rows(path, options) for split, path in paths.items()}
        said: dict[str, Any] = {}
        if "held_out" not in tables:
            tables["train"], tables["held_out"], said["held out"] = hold_out(
                tables["train"], options.share, folders, str(paths["train"])
            )
        tables["train"] = limited(tables["train"], options.limit, folders.seed)
        given = tokenizer
        texts = [row.fields[name] for row in tables["train"] for name in (options.text, options.summary)]
        tokenizer = tokenizer_for(options, given, texts)
        if given is None:
            tokenizer = ending_texts(tokenizer)
        made: dict[str, Parallel] = {}
        for split, table in tables.items():
            made[split], left_out = self._pairs(table, options, tokenizer, split, folders, str(paths.get(split, split)))
            if left_out:
                said["train texts left out, summary too long"] = left_out
        objective = Summaries(
            tokenizer,
            smoothing=options.smoothing,
            convention=options.convention,
            sample=options.sample,
            beam=Beam(
                beams=options.beams,
                alpha=options.alpha,
                max_new=options.summary_length,
                no_repeat_ngram=options.no_repeat,
            ),
        )
        return Prepared(
            made["train"],
            made["held_out"],
            objective,
            made.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "padding": tokenizer.pad},
            facts={**_facts(made, tables, options), **said, "baselines": _baselines(tables, options)},
        )

    def _rows(self, path: Path, options: "Summarize.Options") -> list[TableRow]:
        if is_wikitext(path):
            rows = list(headed_paragraphs(path, options.text, options.summary))
            if not rows:
                raise InvalidInput(f"{path} has no paragraphs under a heading")
            return rows
        return read_rows(path, [options.text, options.summary], options)

    def _pairs(
        self,
        table: Sequence[TableRow],
        options: "Summarize.Options",
        tokenizer: Tokenizer,
        split: str,
        folders: DataPaths,
        name: str,
    ) -> tuple[Parallel, int]:
        """The texts and summaries of a split as ids, and how many were left out."""
        train = split == "train"
        begin, end = ends_of(tokenizer)
        summaries = [row.fields[options.summary] for row in table]
        wanted = [text.ids for text in tokenizer.encode_many(summaries, special=False)]
        kept = [index for index, ids in enumerate(wanted) if not train or len(ids) < options.summary_length]
        if not kept:
            raise InvalidInput(
                f"{name}: every summary has {options.summary_length} tokens or more; give a larger summary_length"
            )
        # What is cut of a held-out summary is missing from its loss, and not from the reference of ROUGE.
        targets = [wanted[index][: options.summary_length - 1] for index in kept]
        texts = [options.prefix + table[index].fields[options.text] for index in kept]
        encoded = tokenizer.encode_many(texts, longest=options.length, truncate="right")
        pairs = Parallel(
            write_tokens(folders.work / f"{split}-source", [text.ids for text in encoded], vocabulary=tokenizer.size),
            write_tokens(folders.work / f"{split}-target", targets, vocabulary=tokenizer.size),
            begin=begin,
            end=end,
            padding=tokenizer.pad or 0,
            batch=options.batch,
            seed=folders.seed,
            shuffle=train,
            references=() if train else [summaries[index] for index in kept],
            name=name,
        )
        return pairs, len(table) - len(kept)


def lead(text: str, count: int) -> str:
    """The first sentences of a text: the summary that takes no model."""
    return "\n".join(_sentences(text)[:count])


def _sentences(text: str) -> list[str]:
    return [part for line in text.split("\n") for part in SENTENCE.split(line.strip()) if part]


def _in_lines(text: str) -> str:
    """One sentence per line, as ROUGE-L of summaries is defined."""
    return "\n".join(_sentences(text))


def _baselines(tables: Mapping[str, Sequence[TableRow]], options: Summarize.Options) -> dict[str, dict[str, float]]:
    """ROUGE of summaries that take no model, on the held-out texts."""
    held = tables["held_out"]
    texts, references = ([row.fields[name] for row in held] for name in (options.text, options.summary))
    common = Counter(row.fields[options.summary] for row in tables["train"]).most_common(1)[0][0]
    guesses = {name: [lead(text, count) for text in texts] for name, count in LEADS.items()}
    guesses[f"always {common[:40]!r}"] = [common] * len(texts)
    wanted = [_in_lines(text) for text in references]
    return {name: Rouge.of(guess, wanted).result() for name, guess in guesses.items()}


def _facts(
    made: Mapping[str, Parallel], tables: Mapping[str, Sequence[TableRow]], options: Summarize.Options
) -> dict[str, Any]:
    train = made["train"]
    facts: dict[str, Any] = {f"{split} texts": len(data) for split, data in made.items()}
    cut = int((train.lengths[0] >= options.length).sum())
    facts["train texts cut"] = f"{100 * cut / max(1, len(train)):.1f} % have {options.length} tokens or more"
    facts["text tokens"], facts["summary tokens"] = (int(side.sum()) for side in train.lengths)
    words = [len(row.fields[options.summary].split()) for row in tables["train"]]
    facts["words of a summary"] = round(sum(words) / len(words), 1)
    facts["padding"] = round(train.padded(), 4)
    return facts


__all__ = ["Summaries", "Summarize", "lead"]
