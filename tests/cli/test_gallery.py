"""`longspan gallery`."""

import json

import pytest

from longspan.cli.main import main


def test_it_writes_the_page_and_the_picture(tmp_path, capsys):
    page, picture = tmp_path / "gallery.html", tmp_path / "patterns.svg"
    arguments = ["gallery", "--html", str(page), "--svg", str(picture), "--mechanisms", "softmax,reformer,inducing"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"wrote {page}\nwrote {picture}\n"
    html, svg = page.read_text(encoding="utf-8"), picture.read_text(encoding="utf-8")
    assert html.count('class="card') == 3 and "unsafe-inline" not in html and "https://" not in html
    assert svg.count("<image") == 3 and "prefers-color-scheme" in svg


def test_json_has_facts_and_counts_but_no_maps(capsys):
    assert main(["gallery", "--json", "--mechanisms", "window"]) == 0
    found = json.loads(capsys.readouterr().out)
    (window,) = found["mechanisms"]
    assert window["name"] == "window" and window["order"] == "n·window"
    causal = window["forms"]["causal"]
    assert (causal["could_read"], causal["cells"], causal["outside"]) == (7 * 64 - 21, 4096, 0.0)  # a window of 6
    assert found["visible"]["GPT"] == {"layer 0": 78, "layer 1": 78, "layer 2": 78}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --html FILE for the page, --svg FILE for one picture, or --json for the numbers"),
        (["--html", "/nowhere/x.html"], "/nowhere/x.html cannot be written: there is no folder /nowhere"),
        (["--json", "--mechanisms", "windw"], "no attention is called 'windw': did you mean 'window'?"),
        (["--json", "--mechanisms", ","], "--mechanisms is empty; give names separated by commas"),
    ],
)
def test_errors(arguments, message, capsys):
    assert main(["gallery", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"longspan: {message}\n")
