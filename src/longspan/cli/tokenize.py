"""`longspan tokenize`: learn, inspect and use tokenizers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, Lines, print_json, read_lines
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption
from longspan.files import undone_on_error

if TYPE_CHECKING:
    from longspan.data import Tokenizer

app = App(name="tokenize", help="Learn, inspect and use tokenizers.")
Folder = Annotated[Path, Parameter(help="the folder of a tokenizer, or of a model with one")]
BARS = 12  # rows of a histogram


@app.command
def learn(
    *files: Path,
    out: Annotated[Path, Parameter(help="the folder to write")],
    kind: Annotated[
        Literal["bytes", "characters", "words", "bpe", "wordpiece", "unigram"],
        Parameter(help="kind of tokenizer (default: bpe)"),
    ] = "bpe",
    size: Annotated[int, Parameter(help="largest size of the vocabulary (default: 8000)")] = 8000,
    lowercase: Annotated[bool, Parameter(help="lowercase the text and drop accents")] = False,
    frequency: Annotated[int, Parameter(help="least number of times a pair or word must occur (default: 2)")] = 2,
    special: Annotated[bool, Parameter(help="add tokens for beginning, end, padding and mask (default: yes)")] = True,
    json: AsJson = False,
) -> None:
    """Learn a tokenizer from text files (also .gz, .bz2 and .xz) and write it as `tokenizer.json`.

    Hugging Face's AutoTokenizer can read it.

    **Examples:**

        longspan tokenize learn wiki.txt --kind bpe --size 8000 --out tokenizer/
        longspan tokenize learn a.txt b.txt.gz --kind wordpiece --lowercase --out tokenizer/
    """
    from longspan.data.text.pieces import pieces
    from longspan.data.tokenizers.learn import TokenizerOptions
    from longspan.data.tokenizers.learn import learn as learn_from

    if not files:
        raise InvalidOption("give at least one text file to learn from")
    if (out / "tokenizer.json").exists():
        raise InvalidInput(f"{out} has a tokenizer already; name another folder")
    options = TokenizerOptions(kind=kind, size=size, lowercase=lowercase, frequency=frequency, special=special)
    with Console(stderr=True).status(f"learning from {', '.join(map(str, files))}"):
        tokenizer = learn_from(options, (piece for file in files for piece in pieces(file)))
    with undone_on_error(out):
        tokenizer.save(out)
    if json:
        return print_json({"path": str(out), "kind": kind, "size": tokenizer.size})
    print(f"{out}: {tokenizer.size} tokens ({kind})")


@app.command
def show(
    path: Folder,
    /,
    *,
    merges: Annotated[int, Parameter(help="number of merges to show (default: 20)")] = 20,
    json: AsJson = False,
) -> None:
    """Show a tokenizer: its size, its special tokens and its first merges.

    **Examples:**

        longspan tokenize show tokenizer/ --merges 50
    """
    tokenizer = _read(path)
    facts = _described(tokenizer, merges)
    if json:
        return print_json(facts)
    console = output()
    console.print(f"{facts['kind']}, {facts['size']} tokens, {facts['merges']} merges")
    table = Table("id", "special token", "role", box=None, pad_edge=False)
    for row in facts["special"]:
        table.add_row(str(row["id"]), escape(row["token"]), row["role"] or "")
    if facts["special"]:
        console.print(table)
    if facts["first"]:
        table = Table("merge", "left", "right", "token", "id", box=None, pad_edge=False)
        for row in facts["first"]:
            values = (row["left"], row["right"], row["token"])
            table.add_row(str(row["rank"]), *(escape(value) for value in values), str(row["id"]))
        console.print(table)


def _described(tokenizer: "Tokenizer", merges: int) -> dict[str, Any]:
    import json as json_module

    model = json_module.loads(tokenizer.to_json())["model"]
    pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model.get("merges", [])]
    roles = {token: role for role, token in tokenizer.special.items()}
    return {
        "kind": type(tokenizer.inner.model).__name__,
        "size": tokenizer.size,
        "merges": len(pairs),
        "special": [
            {"id": number, "token": token, "role": roles.get(token)} for token, number in tokenizer.specials.items()
        ],
        "first": [
            {"rank": rank, "left": left, "right": right, "token": left + right, "id": tokenizer.id(left + right)}
            for rank, (left, right) in enumerate(pairs[: max(0, merges)])
        ],
    }


@app.command
def encode(
    path: Folder,
    /,
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, help="texts; - reads standard input")],
    file: Lines = None,
    special: Annotated[bool, Parameter(help="add the special tokens around each text (default: no)")] = False,
    allow: Annotated[
        tuple[str, ...], Parameter(negative="", help="read this special token, such as [MASK], if it is in the text")
    ] = (),
    json: AsJson = False,
) -> None:
    """Tokenize texts: print ids, pieces and character positions.

    Texts are arguments, or lines of a file; `-` reads standard input.

    **Examples:**

        longspan tokenize encode tokenizer/ "Undo it."
        longspan tokenize encode tokenizer/ --file lines.txt --json
        echo "Undo it." | longspan tokenize encode tokenizer/ -
    """
    tokenizer = _read(path)
    for word in words:
        if word.startswith("--"):  # more likely a misspelled option than a text
            raise InvalidOption(f"there is no option {word}; give a text that begins with -- by --file")
    if words == ("-",):
        words, file = (), Path("-")
    texts = read_lines(words, file, "--file", "a text")
    rows: list[dict[str, Any]] = []
    for text, encoded in zip(texts, tokenizer.encode_many(texts, special=special, allow=allow)):
        pieces = [tokenizer.token(number) for number in encoded.ids]
        rows.append({"text": text, "ids": encoded.ids, "pieces": pieces, "offsets": encoded.offsets})
    if json:
        return print_json(rows)
    console = output()
    for row in rows:
        table = Table(
            "id",
            "piece",
            "characters",
            "text",
            title=None if len(rows) == 1 else escape(row["text"]),
            box=None,
            pad_edge=False,
        )
        for number, piece, (start, stop) in zip(row["ids"], row["pieces"], row["offsets"]):
            span = f"{start}–{stop}" if stop else ""
            table.add_row(str(number), escape(piece), span, escape(repr(row["text"][start:stop])) if stop else "")
        console.print(table)


@app.command
def decode(
    path: Folder,
    /,
    *ids: int,
    special: Annotated[bool, Parameter(help="also print special tokens (default: no)")] = False,
    json: AsJson = False,
) -> None:
    """Turn token ids back into text.

    **Examples:**

        longspan tokenize decode tokenizer/ 318 42 7
    """
    tokenizer = _read(path)
    for number in ids:
        if not 0 <= number < tokenizer.size:
            raise InvalidInput(f"there is no id {number}; ids are 0 to {tokenizer.size - 1}")
    text = tokenizer.decode(ids, special=special)
    print_json({"ids": ids, "text": text}) if json else print(text)


@app.command
def statistics(
    path: Folder,
    /,
    *files: Path,
    json: AsJson = False,
) -> None:
    """Show how text files are tokenized: tokens per word, share of unknown tokens, lengths of lines.

    **Examples:**

        longspan tokenize statistics tokenizer/ held-out.txt
    """
    from longspan.data.text.text_files import lines
    from longspan.data.tokenizers.statistics import measure

    if not files:
        raise InvalidOption("give at least one text file")
    tokenizer = _read(path)
    measured = measure(tokenizer, (line for file in files for line in lines(file)))
    if json:
        return print_json(measured.plain())
    console = output()
    for name, value in measured.plain().items():
        if name != "lengths":
            console.print(f"{name.replace('_', ' ')}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    table = Table("tokens per line", "lines", "", box=None, pad_edge=False)
    rows = measured.histogram(BARS)
    most = max(count for _, _, count in rows)
    for start, stop, count in rows:
        table.add_row(f"{start}–{stop}", str(count), "█" * round(40 * count / most))
    console.print(table)


def _read(path: Path) -> "Tokenizer":
    from longspan.data import read_tokenizer

    tokenizer = read_tokenizer(path)
    if tokenizer is None:
        raise InvalidInput(f"{path} has no tokenizer")
    return tokenizer
