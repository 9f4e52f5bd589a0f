"""`longspan heal`: a model with swapped attention learns from the original."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.adapt.heal.run import Progress


def heal(
    folder: Path,
    /,
    *,
    teacher: Annotated[Path, Parameter(help="the model before its attention was swapped")],
    data: Annotated[Path, Parameter(help="a text file to train on; its end is held out")],
    out: Annotated[Path, Parameter(help="folder to write; it appears when all is done")],
    budget: Annotated[str, Parameter(help="time of training at most, such as 90s, 60m, 1.5h (default: 60m)")] = "60m",
    tokens: Annotated[int | None, Parameter(help="tokens to train on (default: what fits the budget)")] = None,
    stage: Annotated[
        Literal["1", "2", "both"], Parameter(help="1: attention transfer; 2: distillation (default: both)")
    ] = "both",
    loss: Annotated[
        Literal["weights", "outputs"], Parameter(help="of stage 1: attention weights (default) or outputs")
    ] = "weights",
    full: Annotated[bool, Parameter(negative="", help="train all weights in stage 2, not adapters")] = False,
    window_dropout: Annotated[bool, Parameter(help="stage 1: switch windows off at random (default: on)")] = True,
    share: Annotated[float, Parameter(help="stage 1's share of time or tokens (default: 0.5)")] = 0.5,
    rate1: Annotated[float | None, Parameter(help="learning rate of stage 1")] = None,
    rate2: Annotated[float | None, Parameter(help="learning rate of stage 2")] = None,
    next_token: Annotated[
        float, Parameter(help="weight of the next token's loss in stage 2; 0: the teacher alone (default: 0.1)")
    ] = 0.1,
    length: Annotated[int, Parameter(help="tokens of a training text (default: 512)")] = 512,
    batch: Annotated[int, Parameter(help="texts of a step (default: 8)")] = 8,
    held_out: Annotated[int, Parameter(help="texts held out (default: 16)")] = 16,
    measurements: Annotated[int, Parameter(help="held-out measurements in each stage (default: 20)")] = 20,
    documents: Annotated[bool, Parameter(negative="", help="empty lines in the text separate documents")] = False,
    lengths: Annotated[
        str, Parameter(help="lengths at which memory and speed are measured (default: 1024,8192,32768,65536)")
    ] = "1024,8192,32768,65536",
    seed: Annotated[int, Parameter(help="of everything random (default: 0)")] = 0,
    json: AsJson = False,
) -> int | None:
    """Heal a model whose attention was swapped: it learns from the original, on your text.

    Stage 1 trains feature maps, gates and mixes of the new attention, each layer by itself, on what the original's
    attention does. Stage 2 trains the whole model on the original's predictions, by adapters that are merged at the
    end. Ctrl-C saves; the same command resumes, to the bit. The table at the end compares teacher, swapped and healed
    model, also with the window and the linear part off; heal.json and report.html in the folder have it too.

    **Examples:**

        longspan heal swapped/ --teacher original/ --data text.txt --budget 60m --out healed
        longspan heal swapped/ --teacher original/ --data text.txt --stage 2 --full --out healed

    Parameters
    ----------
    folder
        A folder of ours whose attention was swapped.
    """
    from longspan.adapt.heal import HealOptions, seconds
    from longspan.adapt.heal import heal as run
    from longspan.report.heal import energy_line, heal_page, rows, summary, verdict
    from longspan.train.loop import Interrupted

    given: dict[str, Any] = {"rate1": rate1} if rate1 is not None else {}
    options = HealOptions(
        budget=seconds(budget),
        tokens=tokens,
        stage=stage,
        loss=loss,
        full=full,
        window_dropout=window_dropout,
        share=share,
        rate2=rate2,
        next_token=next_token,
        length=length,
        batch=batch,
        held_out=held_out,
        measurements=measurements,
        documents=documents,
        seed=seed,
        **given,
    )
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    tables: list[Any] = []

    def say(line: str) -> None:
        screen.print(line, markup=False)

    def add(target: Path, table: Any, record: dict[str, Any]) -> None:
        tables.append(table)
        (target / "report.html").write_text(heal_page(table, record), encoding="utf-8")

    try:
        healed = run(
            folder,
            teacher=teacher,
            data=data,
            out=out,
            options=options,
            decode_lengths=_lengths(lengths),
            show=lambda progress: say(_line(progress)),
            say=say,
            add=add,
        )
    except Interrupted as stopped:
        say("saved; the same command continues")
        return 128 + stopped.signal
    if json:
        print_json(healed.record)
        return None
    console = Console(highlight=False, soft_wrap=True)
    names = ["", "teacher", "swapped", "healed"]
    lines = [names, *rows(healed.table)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    for line in lines:
        shown = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        console.print("  ".join(shown).rstrip(), markup=False)
    for note in (*healed.table.notes, energy_line(healed.record), f"wrote {healed.folder}"):
        if note:
            console.print(note, markup=False)
    console.print(summary(healed.table), markup=False)
    if verdict(healed.table):
        console.print(verdict(healed.table), markup=False)
    return None


def _lengths(text: str) -> tuple[int, ...]:
    from longspan.errors import InvalidOption

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not part.isdecimal() or int(part) < 1 for part in parts):
        raise InvalidOption(f"--lengths are numbers from 1 on, such as 1024,8192, not {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def _line(progress: "Progress") -> str:
    left = progress.remaining
    return (
        f"stage {progress.stage}, step {progress.step} of {progress.steps}: loss {progress.loss:.4f}, "
        f"held out {progress.held_out:.4f} (best {progress.best:.4f}), {progress.tokens_per_second:.0f} tokens/s, "
        f"{left / 60:.0f} min left"
    )
