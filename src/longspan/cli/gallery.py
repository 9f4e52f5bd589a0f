"""`longspan gallery`: what every mechanism reads, as one page."""

from pathlib import Path

from longspan import files
from longspan.cli.inputs import AsJson, check_writable, comma_separated, notices, print_json
from longspan.cli.measuring import progress
from longspan.errors import InvalidOption


def gallery(
    *,
    html: Path | None = None,
    svg: Path | None = None,
    mechanisms: str | None = None,
    json: AsJson = False,
) -> None:
    """Draw what every attention mechanism reads: a page with dials, or one picture of all.

    Each mechanism reads the same 64 tokens. The page shows what it could read and what it read, two mechanisms side by
    side, what each costs at 1k to 64k tokens, and what states of BERT, GPT and ELMo can have read. It needs no data and
    no weights, and takes less than a minute. Plugins appear by themselves.

    **Examples:**

        longspan gallery --html gallery.html
        longspan gallery --html mine.html --mechanisms softmax,window,mypackage.mine:MyAttention
        longspan gallery --svg patterns.svg
        longspan gallery --json

    Parameters
    ----------
    html
        The page to write: one file that requests nothing.
    svg
        One picture of all patterns to write, for a README or slides.
    mechanisms
        Names separated by commas, or package.module:Name for one of your own (default: all).
    """
    if html is None and svg is None and not json:
        raise InvalidOption("give --html FILE for the page, --svg FILE for one picture, or --json for the numbers")
    for path in (html, svg):
        check_writable(path)

    from longspan.attention.registry import ATTENTION, names

    chosen = list(names() if mechanisms is None else comma_separated(mechanisms, "--mechanisms"))
    chosen = [ATTENTION.adopt(name) if ":" in name else name for name in chosen]
    for name in chosen:
        ATTENTION.find(name)

    from longspan.inspect.gallery import collect
    from longspan.inspect.visibility import visibility

    with notices(), progress(f"drawing {len(chosen)} mechanisms") as tell:
        entries = collect(None if mechanisms is None else chosen, tell)
    if html is not None or json:
        sights = visibility()
        if html is not None:
            from longspan.report.gallery import gallery_page

            files.write_text(html, gallery_page(entries, sights))
        if json:
            from longspan.report.gallery_data import plain

            print_json(plain(entries, sights))
    if svg is not None:
        from longspan.report.gallery_svg import gallery_svg

        files.write_text(svg, gallery_svg(entries))
    for path in (html, svg):
        if path is not None and not json:
            print(f"wrote {path}")
