"""`longspan generate`."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console

from longspan.cli.inputs import AsJson, Cut, Lines, load_model, notices, print_json, progress, read_lines
from longspan.cli.tables import output
from longspan.errors import InvalidOption

DRAWING = Group("Drawing tokens; the best one is taken unless one of these is given", sort_key=1)
KEEPING = Group("What may come", sort_key=2)
SEARCHING = Group("Beam search instead of drawing", sort_key=3)


def _draw(help: str, group: Group = DRAWING) -> Parameter:
    return Parameter(group=group, negative="", help=help)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The options of `decode.Sampling` that a line can hold; None: its own default."""

    temperature: Annotated[float | None, _draw("divides the logits; 0 takes the best token")] = None
    top_k: Annotated[int | None, _draw("draw from this many best tokens")] = None
    top_p: Annotated[float | None, _draw("draw from the fewest best tokens with this probability together")] = None
    min_p: Annotated[float | None, _draw("leave out tokens under this share of the best one's probability")] = None
    samples: Annotated[int | None, _draw("texts for each prompt")] = None
    seed: Annotated[int | None, _draw("of the random draws")] = None
    repetition_penalty: Annotated[float | None, _draw("over 1: tokens that were there come less", KEEPING)] = None
    frequency_penalty: Annotated[float | None, _draw("taken off a logit for each time its token came", KEEPING)] = None
    presence_penalty: Annotated[float | None, _draw("taken off the logit of a token that came", KEEPING)] = None
    no_repeat_ngram: Annotated[int | None, _draw("no run of this many tokens comes twice", KEEPING)] = None
    min_new: Annotated[int | None, _draw("tokens before the end may come", KEEPING)] = None


DRAWS = ("temperature", "top_k", "top_p", "min_p", "samples", "seed")


def generate(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    max_new: Annotated[int | None, Parameter(help="most new tokens; 100, or what there is room for")] = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="", help="a text that ends what is generated")] = (),
    special: Annotated[bool, Parameter(negative="", help="names of special tokens in prompts are tokens")] = False,
    chat: Annotated[bool, Parameter(negative="", help="prompts are what a user says, and texts are answers")] = False,
    system: Annotated[str | None, Parameter(help="with --chat: what the model is told first")] = None,
    drawn: Drawn | None = None,
    beams: Annotated[int | None, Parameter(group=SEARCHING, help="hypotheses that are kept")] = None,
    alpha: Annotated[float | None, Parameter(group=SEARCHING, help="power of the length penalty; 0.6")] = None,
    n_best: Annotated[int | None, Parameter(group=SEARCHING, help="texts for each prompt; 1")] = None,
    truncate: Cut = False,
    slide: Annotated[bool, Parameter(help="let texts outgrow the model, with a sliding window")] = True,
    json: AsJson = False,
) -> None:
    """Continue prompts, or let an encoder–decoder make something of them.

    One prompt is shown as it is written. A text ends where the checkpoint says, at a stop text, or with --max-new.

    **Examples:**

        longspan generate gpt2/ "The capital of France is" --max-new 20
        longspan generate gpt2/ "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3
        longspan generate SmolLM2-135M-Instruct.gguf "What is the capital of France?" --chat
        longspan generate bart-large-cnn/ --file articles.txt --beams 4 --json

    Parameters
    ----------
    path
        A folder of Hugging Face's or of longspan's, or a file of a Llama (.gguf, or .bin of llama2.c).
    words
        Prompts; each argument is one.
    """
    from longspan import hub

    asked = read_lines(words, file, "--file", "a prompt")
    options = drawn or Drawn()
    beam = _beam(beams, alpha, n_best, options)
    sampling = read_sampling(options)
    found = load_model(path)
    alone = len(asked) == 1 and (sampling is None or sampling.samples == 1) and beam is None
    if alone and not json and not (sampling is None and getattr(found.model, "reads_source", False)):
        with notices():
            pieces = hub.stream(
                found,
                asked[0],
                max_new=max_new,
                sampling=sampling,
                stop=stop,
                special=special,
                chat=chat,
                system=system,
                truncate=truncate,
                slide=slide,
            )
        if sys.stdout.isatty() and not chat and not getattr(found.model, "reads_source", False):  # so that it reads on
            Console(highlight=False).print(asked[0], style="dim", markup=False, end="", soft_wrap=True)
        for piece in pieces:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        print()
        return
    with notices(), progress("writing", len(asked)) as tell:
        made = hub.generate(
            found,
            asked,
            max_new=max_new,
            sampling=sampling,
            beam=beam,
            stop=stop,
            special=special,
            chat=chat,
            system=system,
            truncate=truncate,
            slide=slide,
            progress=tell,
        )
    if json:
        rows = zip(asked, made)
        print_json([{"prompt": prompt, "texts": [asdict(text) for text in texts]} for prompt, texts in rows])
        return
    console = output()
    for prompt, texts in zip(asked, made):
        for text in texts:
            console.print(prompt, style="dim", markup=False)
            print(text.text)


def read_sampling(options: Drawn) -> Any:
    """How tokens are chosen; None: as the checkpoint says."""
    from longspan.decode import GREEDY, Sampling

    given = {key: value for key, value in vars(options).items() if value is not None}
    if not given:
        return None
    return Sampling(**given) if any(key in given for key in DRAWS) else replace(GREEDY, **given)


def _beam(beams: int | None, alpha: float | None, n_best: int | None, options: Drawn) -> Any:
    from longspan.decode import Beam

    given: dict[str, Any] = {"beams": beams, "alpha": alpha, "n_best": n_best}
    if beams is None:
        for name, value in given.items():
            if value is not None:
                raise InvalidOption(f"{_flag(name)} is for beam search; give --beams too")
        return None
    shared = {"no_repeat_ngram": options.no_repeat_ngram, "min_new": options.min_new}
    for name, value in vars(options).items():
        if value is not None and name not in shared:
            raise InvalidOption(f"{_flag(name)} is for drawing tokens, and --beams searches; give one of them")
    return Beam(**{key: value for key, value in {**given, **shared}.items() if value is not None})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
