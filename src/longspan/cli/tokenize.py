"""`longspan tokenize`: learn a tokenizer, look into it, and put text through it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, Lines, print_json, read_lines
from longspan.cli.tables import output
from longspan.errors import InvalidInput, InvalidOption
from longspan.files import undone_on_error

if TYPE_CHECKING:
    from longspan.data import Tokenizer

app = App(name="tokenize", help="Learn a tokenizer, look into it, and put text through it.")
Folder = Annotated[Path, Parameter(help="the folder of a tokenizer, or of a model that has one")]
BARS = 12  # rows of a histogram


@app.command
def learn(
    *files: Path,
    out: Annotated[Path, Parameter(help="the folder to write")],
    kind: Annotated[
        Literal["bytes", "characters", "words", "bpe", "wordpiece", "unigram"], Parameter(help="how text is cut; bpe")
    ] = "bpe",
    size: Annotated[int, Parameter(help="most tokens of the vocabulary; 8000")] = 8000,
    lowercase: Annotated[bool, Parameter(help="make upper case lower, and drop accents")] = False,
    frequency: Annotated[int, Parameter(help="how often a pair or word must be seen; 2")] = 2,
    special: Annotated[bool, Parameter(help="have tokens for beginning, end, padding and mask")] = True,
    json: AsJson = False,
) -> None:
    """Learn a tokenizer from files of text (.gz, .bz2 and .xz too), and write it as `tokenizer.json`.

    Hugging Face's AutoTokenizer reads it as well.

    **Examples:**

        longspan tokenize learn wiki.txt --kind bpe --size 8000 --out tokenizer/
        longspan tokenize learn a.txt b.txt.gz --kind wordpiece --lowercase --out tokenizer/
    """
    from longspan.data.text.pieces import pieces
    from longspan.data.tokenizers.learn import TokenizerOptions
    from longspan.data.tokenizers.learn import learn as learn_from

    if not files:
        raise InvalidOption("give a file of text to learn from, or several")
    if (out / "tokenizer.json").exists():
        raise InvalidInput(f"{out} has a tokenizer already; name another folder")
    options = TokenizerOptions(kind=kind, size=size, lowercase=lowercase, frequency=frequency, special=special)
    with Console(stderr=True).status(f"learning from {', '.join(map(str, files))}"):
        made = learn_from(options, (piece for file in files for piece in pieces(file)))
    with undone_on_error(out):
        made.save(out)
    if json:
        return print_json({"path": str(out), "kind": kind, "size": made.size})
    print(f"{out}: {made.size} tokens ({kind})")


@app.command
def show(
    path: Folder,
    /,
    *,
    merges: Annotated[int, Parameter(help="how many merges, the first ones; 20")] = 20,
    json: AsJson = False,
) -> None:
    """Show a tokenizer: its size, its special tokens, and what it merges, in order.

    **Examples:**

        longspan tokenize show tokenizer/ --merges 50
    """
    tokenizer = _read(path)
    found = _described(tokenizer, merges)
    if json:
        return print_json(found)
    console = output()
    console.print(f"{found['kind']}, {found['size']} tokens, {found['merges']} merges")
    table = Table("id", "special token", "role", box=None, pad_edge=False)
    for row in found["special"]:
        table.add_row(str(row["id"]), escape(row["token"]), row["role"] or "")
    if found["special"]:
        console.print(table)
    if found["first"]:
        table = Table("merge", "left", "right", "token", "id", box=None, pad_edge=False)
        for row in found["first"]:
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
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, help="texts; - is the standard input")],
    file: Lines = None,
    special: Annotated[bool, Parameter(help="with the tokens that stand around a text; not unless said")] = False,
    allow: Annotated[
        tuple[str, ...], Parameter(negative="", help="a special token that may be written in the text; [MASK], say")
    ] = (),
    json: AsJson = False,
) -> None:
    """Cut texts into tokens: ids, pieces, and the characters that each stands for.

    Texts are arguments, or lines of a file; `-` is the standard input.

    **Examples:**

        longspan tokenize encode tokenizer/ "Undo it."
        longspan tokenize encode tokenizer/ --file lines.txt --json
        echo "Undo it." | longspan tokenize encode tokenizer/ -
    """
    tokenizer = _read(path)
    for word in words:
        if word.startswith("--"):  # a text may; more often it is an option that was spelled wrong
            raise InvalidOption(f"there is no option {word}; a text that begins so is given by --file")
    if words == ("-",):
        words, file = (), Path("-")
    texts = read_lines(words, file, "--file", "a text")
    found: list[dict[str, Any]] = []
    for text, each in zip(texts, tokenizer.encode_many(texts, special=special, allow=allow)):
        pieces = [tokenizer.token(number) for number in each.ids]
        found.append({"text": text, "ids": each.ids, "pieces": pieces, "offsets": each.offsets})
    if json:
        return print_json(found)
    console = output()
    for row in found:
        table = Table(
            "id",
            "piece",
            "characters",
            "text",
            title=None if len(found) == 1 else escape(row["text"]),
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
    special: Annotated[bool, Parameter(help="print special tokens as well; not unless said")] = False,
    json: AsJson = False,
) -> None:
    """Print the text of ids.

    **Examples:**

        longspan tokenize decode tokenizer/ 318 42 7
    """
    tokenizer = _read(path)
    for number in ids:
        if not 0 <= number < tokenizer.size:
            raise InvalidInput(f"there is no id {number}; they are 0 to {tokenizer.size - 1}")
    text = tokenizer.decode(ids, special=special)
    print_json({"ids": ids, "text": text}) if json else print(text)


@app.command
def statistics(
    path: Folder,
    /,
    *files: Path,
    json: AsJson = False,
) -> None:
    """Say how files of text are cut: tokens for each word, how much is unknown, how long lines are.

    **Examples:**

        longspan tokenize statistics tokenizer/ held-out.txt
    """
    from longspan.data.text.text_files import lines
    from longspan.data.tokenizers.statistics import measure

    if not files:
        raise InvalidOption("give a file of text, or several")
    tokenizer = _read(path)
    found = measure(tokenizer, (line for file in files for line in lines(file)))
    if json:
        return print_json(found.plain())
    console = output()
    for name, value in found.plain().items():
        if name != "lengths":
            console.print(f"{name.replace('_', ' ')}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    table = Table("tokens of a line", "lines", "", box=None, pad_edge=False)
    rows = found.histogram(BARS)
    most = max(count for _, _, count in rows)
    for start, stop, count in rows:
        table.add_row(f"{start}–{stop}", str(count), "█" * round(40 * count / most))
    console.print(table)


def _read(path: Path) -> "Tokenizer":
    from longspan.data import read_tokenizer

    found = read_tokenizer(path)
    if found is None:
        raise InvalidInput(f"{path} has no tokenizer")
    return found
