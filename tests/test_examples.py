"""The tour: every chapter runs, checks its own claims, and renders to a page."""

from pathlib import Path

import pytest

from examples import render
from longspan.report.page import text

ROOT = Path(__file__).parents[1]
SCRIPTS = render.scripts()


def test_the_chapters_are_numbered_without_gaps_and_listed():
    assert [script.name[:2] for script in SCRIPTS] == [f"{number:02}" for number in range(1, 13)]
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        assert f"[{int(script.name[:2])} {render.title(script)}](../examples/{script.name})" in page


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_chapter_runs_and_renders(script: Path):
    """Its own assertions hold, and all of its pictures are on the page."""
    shown = render.render(script)
    assert f"<title>{text(render.title(script))}</title>" in shown
    source = script.read_text(encoding="utf-8")
    assert ("<svg" in shown) == ("examples.pictures" in source)
    assert "Content-Security-Policy" in shown


def test_cells_are_prose_or_code():
    source = '"""Title."""\n\n# %% [markdown]\n# # A\n#\n# b\n\n# %%\nx = 1\n\n# %%\nprint(x)\n'
    assert render.cells(source) == [
        render.Cell(True, "# A\n\nb", 4),
        render.Cell(False, "x = 1", 9),
        render.Cell(False, "print(x)", 12),
    ]


def test_what_a_chapter_prints_is_escaped(tmp_path: Path):
    script = tmp_path / "01_hostile.py"
    script.write_text('# %% [markdown]\n# # <b>Hostile</b>\n\n# %%\nprint("<script>alert(1)</script>")\n')
    shown = render.render(script)
    assert "<script>alert" not in shown and "&lt;script&gt;alert(1)" in shown
    assert "<b>" not in shown


def test_a_number_that_no_chapter_has_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.argv", ["render", "99"])
    with pytest.raises(SystemExit, match="2"):
        render.main()
    assert "no script has a number of ['99']; there are ['01', '02'," in capsys.readouterr().err
