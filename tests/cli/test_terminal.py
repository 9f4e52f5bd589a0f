"""Hostile text on a terminal: nothing of a file or a model moves the cursor, hides lines or turns letters around."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text
from tests.hub.folders import decoder

from longspan.cli import terminal
from longspan.cli.main import main
from longspan.cli.terminal import CleanStream, Console, as_json, clean

HOSTILE = "one\x1b]0;title\x07\x1b[2Jtwo\rthree\x9b31mfour\u202efive\x7f"
CLEANED = "one�]0;title��[2Jtwo�three�31mfour�five�"
ALLOWED = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # rich's own colours and cursor movements


def on_terminal(*words: object) -> tuple[int, str]:
    """The exit code and all that a command writes to a real pseudo-terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "longspan", *map(str, words)]
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux reports the end of a terminal so
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    return running.wait(), b"".join(chunks).decode("utf-8")


def unsafe(shown: str) -> list[str]:
    """The characters that should not be there; a terminal itself turns each line feed into CR LF."""
    text = ALLOWED.sub("", shown.replace("\r\n", "\n")).replace("\r", "")  # rich returns the carriage for its status
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_clean_replaces_what_a_terminal_obeys() -> None:
    assert clean(HOSTILE) == CLEANED
    assert clean("kept: \t\n é 漢 \u200d🙂 \u05d0\u200f") == "kept: \t\n é 漢 \u200d🙂 \u05d0\u200f"
    assert clean("a\r\nb") == "a\r\nb"
    assert clean("\udcff") == "�"


def test_json_keeps_the_text_and_shows_escapes() -> None:
    text = as_json({"text": HOSTILE + "\ud800"}, indent=None)
    assert clean(text) == text and r"\u202e" in text and r"\u009b" in text
    assert json.loads(text) == {"text": HOSTILE + "\ud800"}


def test_consoles_clean_cells_and_texts_but_not_their_own_colours(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, width=200, color_system="standard", highlight=False)
    table = Table("a", box=None)
    table.add_row(Text(HOSTILE))
    console.print(HOSTILE, markup=False, style="bold")
    console.print(table)
    shown = capsys.readouterr().out
    assert "\x1b[1m" in shown and "one�]0;title" in shown
    assert not unsafe(shown) and "\x1b[2J" not in shown and "\x1b]" not in shown


def test_a_pipe_gets_standard_output_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=200).print("a\x1bb", markup=False)
    Console(width=200, stderr=True).print("a\x1bb", markup=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a\x1bb\n", "a�b\n")


def test_a_guarded_stream_is_otherwise_the_stream(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        stream = CleanStream(file)
        assert stream.write(HOSTILE) == len(HOSTILE)
        stream.writelines(["\x1b", "x"])
        assert (stream.fileno(), stream.encoding, stream.rich_proxied_file) == (file.fileno(), "utf-8", file)
    assert (tmp_path / "out").read_text() == CLEANED + "�x"


def test_every_console_of_the_commands_is_this_one() -> None:
    folder = Path(terminal.__file__).parent
    direct = [
        path.name
        for path in folder.glob("*.py")
        if path.name != "terminal.py"
        and re.search(r"rich\.console import.*\bConsole\b|rich\.get_console", path.read_text())
    ]
    assert direct == []


def test_errors_that_quote_a_file_are_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(tmp_path / "a\x1b[2Jb\u202e.csv")]) == 2
    shown = capsys.readouterr().err
    assert "a�[2Jb�.csv" in shown and not unsafe(shown)


def test_data_show_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"{HOSTILE} {number}", "label": HOSTILE}) + "\n" for number in range(3))
    )
    code, shown = on_terminal("data", "show", tmp_path / "rows.jsonl")
    assert code == 0 and "�[2Jtwo" in shown
    assert unsafe(shown) == [] and "\x1b[2J" not in shown


def test_generated_text_on_a_terminal_and_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("generate", decoder(tmp_path / "model"), "a\x1b[2Jb", "--temperature", 3, "--seed", 1, "--max-new", 30)
    assert main([str(word) for word in words]) == 0
    raw = capsys.readouterr().out
    assert unsafe(raw)  # the random model writes control characters, and a pipe gets them
    code, shown = on_terminal(*words)
    assert code == 0 and "a�[2Jb" in shown
    assert unsafe(shown) == [] and "\x1b[2J" not in shown


def test_an_error_on_a_terminal(tmp_path: Path) -> None:
    code, shown = on_terminal("card", tmp_path / "no\x1b[2Jwhere")
    assert code == 2 and "no�[2Jwhere" in shown
    assert unsafe(shown) == [] and "\x1b[2J" not in shown and shown.count("\n") == 1
