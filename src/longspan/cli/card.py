"""`longspan card`: a model card from the folder of a run or a model, a data card from a file or a data set."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from longspan.cli.data_show import DataFolder, survey_data
from longspan.cli.inputs import AsJson, check_writable, print_json
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.report.data_card import NamedSource

README = "README.md"


def card(
    what: str,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="write the card to this file, or as README.md into this folder (default: print it)")
    ] = None,
    task: Annotated[
        str | None, Parameter(help="of data: the task that reads it, where the ending does not tell: tag, answer, …")
    ] = None,
    text: Annotated[str | None, Parameter(help="of data: the column of the text (default: guessed)")] = None,
    label: Annotated[str | None, Parameter(help="of data: the column of the label (default: guessed)")] = None,
    data: DataFolder = None,
    json: AsJson = False,
) -> None:
    """Write a model card or a data card: what is known, and questions where nothing is.

    A model card has the sections of Mitchell et al. 2019: model, use, data, training, evaluation, environment, risks. A
    data card has those of Gebru et al. 2021: motivation, composition, collection, preparation, uses, distribution.
    Nothing is guessed: fields without an answer say so. A file that is no card of ours is not replaced.

    **Examples:**

        longspan card runs/char
        longspan card runs/sst2 --out runs/sst2/model
        longspan card smollm2-window --out smollm2-window
        longspan card reviews.csv --out reviews.md
        longspan card sst2 --data DATA

    Parameters
    ----------
    what
        The folder of a run or of a model, also of swap, heal and adapt; or a file, a folder or the name of data.
    """
    from longspan import files
    from longspan.report.card import check_overwrite, has_model, model_card
    from longspan.train.seeds import is_set

    target = out / README if out is not None and out.is_dir() else out
    check_writable(target)
    if target is not None:
        check_overwrite(target)
    folder = Path(what)
    if folder.is_dir() and is_set(folder):
        raise InvalidInput(f"{what} has a set of seeds; give the folder of one of its runs, such as {folder}/seed-0")
    if has_model(folder):
        for name, value in (("--task", task), ("--text", text), ("--label", label)):
            if value is not None:
                raise InvalidOption(f"{name} is for cards of data, and {what} is a model; leave it out")
        content = model_card(folder)
    else:
        content = _of_data(what, task, {"text": text, "label": label}, data)
    if target is not None:
        files.write_text(target, content)
    if json:
        print_json({"card": content, "written": None if target is None else str(target)})
    elif target is None:
        sys.stdout.write(content)
    else:
        print(f"written to {target}")


def _of_data(what: str, task: str | None, columns: dict[str, str | None], data: Path | None) -> str:
    from longspan.cli.data import data_folder
    from longspan.data.sets import named as named_sets
    from longspan.report.data_card import data_card
    from longspan.tasks.text_facts import text_facts

    given = {role: name for role, name in columns.items() if name is not None}
    surveyed = survey_data(what, task, given, data=data)
    texts = None if surveyed.reopen is None else text_facts(surveyed.reopen())
    if Path(what).exists() or what not in named_sets.SETS:
        return data_card(surveyed.found, [Path(what)], texts=texts)
    files = list(named_sets.paths(what, data_folder(data)).values())
    return data_card(surveyed.found, files, texts=texts, named=_source(what))


def _source(name: str) -> "NamedSource":
    """What longspan knows of a named set."""
    from longspan.data.sets import named as named_sets
    from longspan.data.sets import sources
    from longspan.report.data_card import NamedSource

    data_set, known = named_sets.find(name), sources.sources()
    urls = [known[file].url for file in data_set.files.values() if file in known]
    addresses = tuple(dict.fromkeys(url for url in urls if url is not None))
    return NamedSource(name, data_set.what, named_sets.terms(data_set), addresses)


__all__ = ["card"]
