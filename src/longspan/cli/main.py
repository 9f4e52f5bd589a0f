"""`longspan`: the command line. One file per command; here is what they share.

What a user can get wrong is said in one line on standard error, with exit code 2 and no traceback.
"""

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from longspan import __version__
from longspan.cli import (
    advise,
    arena,
    attention,
    audit,
    chat,
    convert,
    embed,
    fill,
    generate,
    predict,
    profile,
    training,
    translate,
)
from longspan.errors import LongspanError

app = App(
    name="longspan",
    help="Every Transformer attention, classic and efficient: pick one, prove it, run it.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(show_default=False),
)
app.command(attention.list_names, name="list")
app.command("longspan.cli.data:app", name="data", help="The named data sets: list them, and prepare one.")
app.command(
    "longspan.cli.tokenize:app", name="tokenize", help="Learn a tokenizer, look into it, and put text through it."
)
app.command(attention.show)
app.command(advise.advise)
app.command(audit.audit)
app.command(arena.arena)
app.command(profile.profile)
app.command(generate.generate)
app.command(chat.chat)
app.command(fill.fill)
app.command(embed.embed)
app.command(predict.predict)
app.command(convert.convert)
app.command(translate.translate)
app.command(training.train)
app.command(training.resume)
app.command(training.evaluate)

errors = Console(stderr=True, highlight=False, soft_wrap=True)


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code: 0 well, 1 a claim or a check failed, 2 the command was wrong."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, LongspanError) as error:
        line = " ".join(str(error).split())
        errors.print(f"longspan: {line}", markup=False)
        return 2
    except KeyboardInterrupt:
        errors.print("longspan: stopped", markup=False)
        return 130
    return code if isinstance(code, int) else 0


def run() -> None:
    """The console script."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has read enough (`longspan list | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the last flush has nowhere to fail
        code = 141  # as a program ends that the signal SIGPIPE ends
    sys.exit(code)
