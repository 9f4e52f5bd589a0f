"""Conversations: turns by the model's template, states kept between turns, and old turns left out."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.folders import decoder, letters, transformer

from longspan import hub
from longspan.cli.main import main
from longspan.data import encode_chat
from longspan.decode import PrefixCache, Sampling, generate, stream
from longspan.errors import InvalidInput, InvalidOption, Notice, Unsupported
from longspan.models.decoder import Decoder

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and m.content == 'no' %}{{ raise_exception('no system') }}"
    "{% endif %}{{ m.role[0] ~ ':' ~ m.content ~ '</s>' }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def talker(folder: Path, **options: Any) -> Path:
    decoder(folder, **{"max_length": 120, **options})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("talker") / "model")


def said(chat: hub.Chat, text: str) -> str:
    return "".join(piece.text for piece in chat.say(text))


@pytest.mark.parametrize("system", [None, "Be kind."])
def test_every_turn_is_the_answer_to_all_before_it(folder: Path, system: str | None) -> None:
    found = hub.load(folder)
    chat = hub.Chat(found, system=system, max_new=6)
    told = [] if system is None else [{"role": "system", "content": system}]
    messages: list[dict[str, str]] = []
    for text in ("Hi", "Why?", "a</s>u:"):
        answer = said(chat, text)
        messages.append({"role": "user", "content": text})
        ids = encode_chat(found.tokenizer, [*told, *messages])
        alone = generate(found.model, [ids], max_new=6, eos=1, tokenizer=found.tokenizer.decode)
        assert alone.texts == [answer]
        messages.append({"role": "assistant", "content": answer})
        assert chat.messages == messages
    one = hub.generate(found, ["Hi"], max_new=6, chat=True, system=system)[0][0].text
    assert one == messages[1]["content"]


def test_what_was_read_is_not_read_again(folder: Path) -> None:
    found = hub.load(folder)
    read: list[int] = []
    extend = found.model.extend
    found.model.extend = lambda ids, *rest, **given: read.append(ids.shape[1]) or extend(ids, *rest, **given)  # type: ignore
    chat = hub.Chat(found, max_new=5, sampling=Sampling(logit_bias=((1, -100.0),), temperature=0.0))
    said(chat, "Hello")
    assert read == [len("u:Hello") + 1 + len("a:"), 1, 1, 1, 1]
    read.clear()
    said(chat, "Yes")
    ids = encode_chat(found.tokenizer, chat.messages[:3])
    assert chat.prefix_cache.reused >= 10 and read[0] == len(ids) - chat.prefix_cache.reused


def test_a_memory_gives_what_reading_anew_gives() -> None:
    torch.manual_seed(0)
    sizes = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 24}
    for options in ({"position": "learned"}, {"attention": "linear"}, {"position": "rotary"}):
        model, memory = Decoder.build(**sizes, **options).double().eval(), PrefixCache()
        for prompt in ([1, 2, 3], [1, 2, 3, 4, 6], [1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7]):
            pieces = list(stream(model, prompt, max_new=4, prefix_cache=memory))
            assert [piece.token for piece in pieces] == generate(model, [prompt], max_new=4).tokens[0]
        assert memory.reused == 5
        long = [1, 2, 3, 4, 5, 6, 7]
        pieces = list(stream(model, long, max_new=30, prefix_cache=memory, slide=True))
        assert [piece.token for piece in pieces] == generate(model, [long], max_new=30, slide=True).tokens[0]
        assert memory.reused == 5
    with pytest.raises(InvalidInput, match="this prefix cache belongs to another model"):
        list(stream(Decoder.build(**sizes), [1], max_new=1, prefix_cache=memory))


def test_an_answer_that_is_broken_off_stays_as_far_as_it_came(folder: Path) -> None:
    chat = hub.Chat(hub.load(folder), max_new=6)
    answer = chat.say("Hi")
    first = next(answer).text + next(answer).text
    answer.close()
    assert chat.messages[-1] == {"role": "assistant", "content": first}
    assert isinstance(said(chat, "Go on"), str)


def test_the_oldest_turns_are_left_out(folder: Path) -> None:
    found = hub.load(folder)
    chat = hub.Chat(found, system="Be kind.", max_new=20)
    with pytest.warns(Notice, match="^the conversation outgrew the 120 tokens of the model: its oldest 2 messages are"):
        for turn in range(3):
            said(chat, f"{turn}" * 20)
    assert len(chat.messages) % 2 == 0 and chat.messages[0]["role"] == "user" and chat.messages[0]["content"][0] != "0"
    ids = encode_chat(found.tokenizer, [{"role": "system", "content": "Be kind."}, *chat.messages[:-1]])
    assert len(ids) + 20 <= 120
    before = list(chat.messages)
    with pytest.raises(InvalidInput, match=r"the message has 1\d\d tokens with its template, which with 20 new ones"):
        chat.say("x" * 110)
    assert chat.messages == before
    with pytest.warns(Notice, match="left out$"):
        said(chat, "Short.")
    assert chat.messages[-2] == {"role": "user", "content": "Short."}


def test_without_a_number_an_answer_has_the_room_there_is(folder: Path) -> None:
    found = hub.load(folder)
    chat = hub.Chat(found, sampling=Sampling(logit_bias=((1, -100.0),), temperature=0.0))
    pieces = list(chat.say("x" * 60))
    assert len(pieces) == 120 - len(encode_chat(found.tokenizer, chat.messages[:1])) and pieces[-1].reason == "length"


def test_what_holds_no_conversation(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not take this conversation: no system"):
        hub.Chat(hub.load(folder), system="no")
    with pytest.raises(InvalidOption, match="a turn has one answer, not 2 samples"):
        hub.Chat(hub.load(folder), sampling=Sampling(samples=2))
    with pytest.raises(InvalidOption, match="max_new must be at least 1, not 0"):
        hub.Chat(hub.load(folder), max_new=0)
    with pytest.raises(InvalidOption, match="system is for chats"):
        hub.generate(hub.load(folder), ["a"], system="Be kind.")
    with pytest.raises(Unsupported, match="this transformer holds no conversations"):
        hub.Chat(hub.load(transformer(tmp_path / "both")))
    letters().save(tmp_path / "plain")
    with pytest.raises(Unsupported, match="no template for chats"):
        hub.Chat(hub.load(decoder(tmp_path / "plain")))


# The command


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: bytes, *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code = main(["chat", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_each_line_is_a_turn(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chat = hub.Chat(hub.load(folder), system="Be kind.", max_new=5, sampling=Sampling(temperature=2.0, seed=4))
    expected = "".join(said(chat, text) + "\n" for text in ("Hi", "Why?"))
    flags = ["--system", "Be kind.", "--max-new", 5, "--temperature", 2.0, "--seed", 4]
    assert run(monkeypatch, capsys, b"Hi\r\n\n  \nWhy?", folder, *flags) == (0, expected, "")
    assert run(monkeypatch, capsys, b"", folder) == (0, "", "")


def test_turns_that_are_left_out_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"".join(b"%d" % turn * 20 + b"\n" for turn in range(4))
    code, _, err = run(monkeypatch, capsys, lines, folder, "--max-new", 20)
    assert code == 0 and err.startswith("longspan: the conversation outgrew the 120 tokens of the model: its oldest")


@pytest.mark.parametrize(
    ("lines", "flags", "words"),
    [
        (b"Hi\ncaf\xe9\n", [], "line 2 of standard input is not UTF-8"),
        (b"x" * 200, [], "say less"),
        (b"Hi", ["--system", "no"], "does not take this conversation: no system"),
        (b"Hi", ["--samples", "2"], "one answer, not 2 samples"),
        (b"Hi", ["--max-new", "0"], "--max-new must be at least 1"),
    ],
)
def test_wrong_input_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: bytes,
    flags: list[str],
    words: str,
) -> None:
    code, _, err = run(monkeypatch, capsys, lines, folder, *flags)
    assert code == 2 and words in err and err.count("\n") == 1


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_a_terminal_asks_and_is_left_cleanly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: type[BaseException]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    typed = iter(["Hi", "", "x" * 200, "Why?"])
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise end from None

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", ask)
    code = main(["chat", str(folder), "--max-new", "5"])
    out, err = capsys.readouterr()
    chat = hub.Chat(hub.load(folder), max_new=5)
    expected = "".join(said(chat, text) + "\n" for text in ("Hi", "Why?"))
    assert (code, out) == (0, expected + "\n") and asked == ["> "] * 5
    assert err.startswith("longspan: the message has ") and err.count("\n") == 1


@pytest.mark.weights
def test_smollm_remembers_what_was_said(smollm_model: hub.Pretrained) -> None:
    chat = hub.Chat(smollm_model, max_new=12)
    assert "Paris" in said(chat, "What is the capital of France?")
    assert "Rome" in said(chat, "And of Italy?")
    assert chat.prefix_cache.reused > 30  # all of the first turn
