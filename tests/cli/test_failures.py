"""Errors of the library in the words of the command line: flags, not Python's arguments."""

from pathlib import Path

import pytest
from tests.cli.test_help import COMMANDS, called
from tests.hub.folders import bert, decoder, transformer

from longspan.cli.failures import explain, flags, in_flags
from longspan.cli.main import main
from longspan.errors import InvalidInput

KNOWN = {"max_new": "--max-new", "stop": "--stop", "batch": "--batch", "chat": "--chat", "samples": "--samples"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    bert(root / "bert")
    decoder(root / "decoder")
    transformer(root / "both")
    (root / "text.txt").write_text("a b c " * 50)
    return root


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("too long; give max_new=58 or a shorter prompt", "too long; give --max-new 58 or a shorter prompt"),
        ("say how long: Beam(max_new=…)", "say how long: --max-new …"),
        ("min_new 9 is more than max_new 3", "min_new 9 is more than --max-new 3"),
        ("option samples must be at least 1, not 0", "--samples must be at least 1, not 0"),
        ("batch must be at least 1, not 0", "--batch must be at least 1, not 0"),
        ("a stream is one text; give samples=1", "a stream is one text; give --samples 1"),
        ("give chat=True, or chat=False", "give --chat, or --no-chat"),
        ("shorten it (batch)", "shorten it (--batch)"),
        ("the largest batch is a batch of texts; stop it", "the largest batch is a batch of texts; stop it"),
        (
            "runs/max_new/a.txt and 'max_new' and my-max_new stay",
            "runs/max_new/a.txt and 'max_new' and my-max_new stay",
        ),
        ("Call(width=3) is no flag", "Call(width=3) is no flag"),
        ("a=batch; x.batch=3", "a=batch; x.batch=3"),
    ],
)
def test_names_become_flags_and_nothing_else_does(message, expected):
    assert in_flags(message, KNOWN) == expected


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_of_every_command_has_its_flag(words):
    """By the name that Python knows it by, as `name=value` in a message shows."""
    command = called(words)
    if command.default_command is None:
        assert flags(list(words)) == {}
        return
    known = flags(list(words))
    assert known["json"] == "--json"
    for name, flag in known.items():
        assert in_flags(f"give {name}=7", known) == f"give {flag} 7"
        assert in_flags(f"option {name} must be less", known) == f"{flag} must be less"


def test_options_of_recipes_and_mechanisms_have_theirs():
    given = ["train", "a.toml", "--train.schedule.rate", "-1", "--model.layers=0"]
    known = flags(given)
    assert (known["rate"], known["layers"]) == ("--train.schedule.rate", "--model.layers")
    assert "rate" not in flags(["train", "a.toml", "--train.schedule.rate", "-1", "--task.rate", "2"])
    error = InvalidInput("option layers must be at least 1, not 0")
    assert explain(error, given) == "--model.layers must be at least 1, not 0"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["generate", "{root}/decoder", "abc", "--max-new", "90", "--no-slide"],
            "3 tokens of prompt and 90 new ones are more than the 40 that this decoder holds; "
            "give --max-new 37 or a shorter prompt",
        ),
        (
            ["generate", "{root}/decoder", "abc", "--min-new", "9", "--max-new", "3"],
            "--min-new 9 is more than --max-new 3",
        ),
        (["generate", "{root}/decoder", "abc", "--top-k", "0"], "--top-k must be at least 1, not 0"),
        (["generate", "{root}/decoder", "abc", "--samples", "0"], "--samples must be at least 1, not 0"),
        (
            ["generate", "{root}/decoder", "a", "--no-repeat-ngram", "-1"],
            "--no-repeat-ngram must be at least 0, not -1",
        ),
        (["generate", "{root}/decoder", "a", "--beams", "0"], "--beams must be at least 1, not 0"),
        (["fill", "{root}/bert", "a [MASK]", "--top", "0"], "--top must be 1 to 22, the vocabulary, not 0"),
        (["embed", "{root}/bert", "a", "--batch", "0"], "--batch must be at least 1, not 0"),
        (["embed", "{root}/bert", "a", "--max-length", "0"], "--max-length must be"),
        (["embed", "{root}/bert", "cat " * 20], "shorten it, or have it cut (--truncate)"),
        (["translate", "{root}/both", "a", "--beams", "0"], "--beams must be at least 1, not 0"),
        (["translate", "{root}/both", "a", "--alpha", "-1"], "--alpha must be at least 0, not -1"),
        (["tokenize", "learn", "{root}/text.txt", "--size", "0", "--out", "{root}/t"], "--size must be at least"),
        (["tokenize", "learn", "{root}/text.txt", "--frequency", "0", "--out", "{root}/t"], "--frequency must be"),
        (["advise", "--length", "0"], "--length must be at least 1, not 0"),
        (["advise", "--length", "8", "--head-dim", "0"], "--head-dim must be at least 1, not 0"),
        (["audit", "torch.nn:Identity", "--causal", "--width", "0"], "--width"),
        (["profile", "--mechanisms", "window", "--window.window", "0"], "--window.window must be at least 1, not 0"),
    ],
    ids=lambda value: " ".join(value[:1] + value[-4:]) if isinstance(value, list) else "",
)
def test_commands_name_their_flags(arguments, line, folders, capsys):
    capsys.readouterr()
    assert main([each.format(root=folders) for each in arguments]) == 2
    err = capsys.readouterr().err
    assert line in err and err.count("\n") == 1


def test_a_fault_of_the_program_is_not_explained_away():
    assert explain(ZeroDivisionError("x"), ["list"]) is None
