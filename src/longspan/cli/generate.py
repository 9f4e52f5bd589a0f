"""`longspan generate`: continue prompts, or answer them with an encoder–decoder."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from longspan.cli.image_generation import ImageFlags, generate_images
from longspan.cli.inputs import AsJson, Cut, Lines, load_model, notices, print_json, progress, read_lines
from longspan.cli.mark import Mark, MarkFlag, by, marked
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.decode import Beam, Sampling

SAMPLING = Group("Sampling (without any of these: as the checkpoint says, or else greedy)", sort_key=1)
CONSTRAINTS = Group("Constraints", sort_key=2)
BEAM_SEARCH = Group("Beam search", sort_key=3)


def _draw(help: str, group: Group = SAMPLING) -> Parameter:
    return Parameter(group=group, negative="", help=help)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """The options of `decode.Sampling` as flags; None means the default of `Sampling`."""

    temperature: Annotated[float | None, _draw("divide the logits by this; 0 is greedy")] = None
    top_k: Annotated[int | None, _draw("sample from this many most probable tokens")] = None
    top_p: Annotated[float | None, _draw("sample from the fewest tokens whose probabilities sum to this")] = None
    min_p: Annotated[float | None, _draw("drop tokens below this share of the best one's probability")] = None
    samples: Annotated[int | None, _draw("texts per prompt")] = None
    seed: Annotated[int | None, _draw("random seed")] = None
    repetition_penalty: Annotated[float | None, _draw("above 1: tokens seen before are less likely", CONSTRAINTS)] = (
        None
    )
    frequency_penalty: Annotated[
        float | None, _draw("subtract this from a token's logit for each time it was generated", CONSTRAINTS)
    ] = None
    presence_penalty: Annotated[
        float | None, _draw("subtract this from a token's logit once it was generated", CONSTRAINTS)
    ] = None
    no_repeat_ngram: Annotated[int | None, _draw("no n-gram of this size is generated twice", CONSTRAINTS)] = None
    min_new: Annotated[int | None, _draw("least number of new tokens before a text may end", CONSTRAINTS)] = None


SAMPLING_ONLY = ("temperature", "top_k", "top_p", "min_p", "samples", "seed")


def generate(
    path: Path,
    /,
    *words: str,
    file: Lines = None,
    max_new: Annotated[
        int | None, Parameter(help="most new tokens (default: 100, or what the model has room for)")
    ] = None,
    stop: Annotated[tuple[str, ...], Parameter(negative="", help="end the text where this string appears")] = (),
    special: Annotated[bool, Parameter(negative="", help="read names of special tokens in prompts as tokens")] = False,
    chat: Annotated[bool, Parameter(negative="", help="treat prompts as a user's turn and print the answers")] = False,
    system: Annotated[str | None, Parameter(help="with --chat: the system message")] = None,
    drawn: SamplingFlags | None = None,
    beams: Annotated[int | None, Parameter(group=BEAM_SEARCH, help="number of beams; turns beam search on")] = None,
    alpha: Annotated[float | None, Parameter(group=BEAM_SEARCH, help="power of the length penalty (default: 0.6)")] = (
        None
    ),
    n_best: Annotated[int | None, Parameter(group=BEAM_SEARCH, help="texts per prompt (default: 1)")] = None,
    truncate: Cut = False,
    images: ImageFlags | None = None,
    slide: Annotated[bool, Parameter(help="slide the window when a text outgrows the model (default: yes)")] = True,
    mark: MarkFlag = False,
    json: AsJson = False,
) -> None:
    """Continue prompts, generate from them with an encoder–decoder, or generate images.

    The text of a single prompt is printed as it is generated. A text ends at the checkpoint's end token, at a --stop
    string, or after --max-new tokens.

    **Examples:**

        longspan generate gpt2/ "The capital of France is" --max-new 20
        longspan generate gpt2/ "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 3
        longspan generate SmolLM2-135M-Instruct.gguf "What is the capital of France?" --chat
        longspan generate bart-large-cnn/ --file articles.txt --beams 4 --json
        longspan generate runs/mnist-image-transformer --out digits.png --samples 36 --seed 1
        longspan generate runs/mnist-image-transformer --complete half.png --rows 14

    Parameters
    ----------
    path
        A Hugging Face or longspan model folder, or a Llama file (.gguf, or llama2.c's .bin).
    words
        Prompts, one per argument.
    """
    from longspan import hub
    from longspan.models.pixel_base import PixelModel

    options, flags = drawn or SamplingFlags(), images or ImageFlags()
    label = Mark.of(path) if mark else None
    if not words and file is None:
        pretrained = load_model(path)
        if isinstance(pretrained.model, PixelModel):
            temperature = 1.0 if options.temperature is None else options.temperature
            return generate_images(
                pretrained.model,
                flags,
                samples=options.samples,
                temperature=temperature,
                seed=options.seed or 0,
                mark=label,
                json=json,
            )
    if flags.given() is not None:
        raise InvalidOption(f"{flags.given()} is for models that generate images, without a prompt; {path} has texts")
    prompts = read_lines(words, file, "--file", "a prompt")
    beam = _beam(beams, alpha, n_best, options)
    sampling = read_sampling(options)
    pretrained = load_model(path)
    if isinstance(pretrained.model, PixelModel):
        raise InvalidOption(f"{path} generates images, which need no prompt; leave out the text")
    reads_source = getattr(pretrained.model, "reads_source", False)
    alone = len(prompts) == 1 and (sampling is None or sampling.samples == 1) and beam is None
    if alone and not json and not (sampling is None and reads_source):
        with notices():
            pieces = hub.stream(
                pretrained,
                prompts[0],
                max_new=max_new,
                sampling=sampling,
                stop=stop,
                special=special,
                chat=chat,
                system=system,
                truncate=truncate,
                slide=slide,
            )
        if label is not None:
            sys.stdout.write(f"{label.text} ")
        if sys.stdout.isatty() and not chat and not reads_source:  # the text continues the prompt
            Console(highlight=False).print(prompts[0], style="dim", markup=False, end="", soft_wrap=True)
        for piece in pieces:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        print()
        return
    with notices(), progress("generating", len(prompts)) as tell:
        generated = hub.generate(
            pretrained,
            prompts,
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
        rows = zip(prompts, generated)
        print_json([{"prompt": prompt, "texts": [asdict(t) for t in texts], **by(label)} for prompt, texts in rows])
        return
    console = output()
    for prompt, texts in zip(prompts, generated):
        for text in texts:
            console.print(prompt, style="dim", markup=False)
            print(marked(text.text, label))


def read_sampling(options: SamplingFlags) -> "Sampling | None":
    """The `Sampling` of the flags; None: as the checkpoint says."""
    from longspan.decode import GREEDY, Sampling

    flags = {key: value for key, value in vars(options).items() if value is not None}
    if not flags:
        return None
    return Sampling(**flags) if any(key in flags for key in SAMPLING_ONLY) else replace(GREEDY, **flags)


def _beam(beams: int | None, alpha: float | None, n_best: int | None, options: SamplingFlags) -> "Beam | None":
    from longspan.decode import Beam

    flags: dict[str, Any] = {"beams": beams, "alpha": alpha, "n_best": n_best}
    if beams is None:
        for name, value in flags.items():
            if value is not None:
                raise InvalidOption(f"{_flag(name)} is for beam search; give --beams too")
        return None
    shared = {"no_repeat_ngram": options.no_repeat_ngram, "min_new": options.min_new}
    for name, value in vars(options).items():
        if value is not None and name not in shared:
            raise InvalidOption(f"{_flag(name)} is for sampling, --beams for beam search; give one of them")
    return Beam(**{key: value for key, value in {**flags, **shared}.items() if value is not None})


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
