"""Downloads: checked, tried twice, never used where anything is wrong. The server is this machine's."""

import bz2
import gzip
import hashlib
import io
import itertools
import socketserver
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longspan.data.sets import download
from longspan.data.sets.download import digest, fetch
from longspan.data.sets.sources import DataSource
from longspan.errors import InvalidInput

CONTENT = "a line\nand another, with an é\n".encode() * 50
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Answers by path with what is next in its list, the last one for ever."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes, dict[str, str]]]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                rows = outer.answers.get(self.path, [(404, b"", {})])
                code, body, headers = rows.pop(0) if len(rows) > 1 else rows[0]
                self.send_response(code)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.inner = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.inner.server_address[1]}"
        self.thread = threading.Thread(target=self.inner.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def put(self, path: str, *bodies: bytes, code: int = 200, **headers: str) -> str:
        self.answers[path] = [(code, body, headers) for body in bodies]
        return self.url + path


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.inner.shutdown()
    made.inner.server_close()
    made.thread.join()


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(name: str, *, link: str | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        good = tarfile.TarInfo("set/train.txt")
        good.size = len(CONTENT)
        archive.addfile(good, io.BytesIO(CONTENT))
        other = tarfile.TarInfo(name)
        if link is not None:
            other.type, other.linkname = tarfile.SYMTYPE, link
        archive.addfile(other, io.BytesIO(b""))
    return file.getvalue()


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
@pytest.mark.parametrize(
    ("path", "body", "member"),
    [
        ("/a.txt", CONTENT, None),
        ("/a.txt.gz", gzip.compress(CONTENT, mtime=0), None),
        ("/a.bz2", bz2.compress(CONTENT), None),
        ("/a.zip", zipped(**{"set/train.txt": CONTENT, "set/b": b"x"}), "set/train.txt"),
        ("/a.tar.gz", tarred("set/other.txt"), "set/train.txt"),
    ],
)
def test_what_comes_is_checked_and_packed_as_its_name_says(
    server: Server, tmp_path: Path, name: str, path: str, body: bytes, member: str | None
) -> None:
    target, seen = tmp_path / "sets" / name, []
    fetch(DataSource(SHA, server.put(path, body), member), target, show=lambda came, total: seen.append((came, total)))
    plain = target.read_bytes()
    assert (gzip.decompress(plain) if target.suffix == ".gz" else plain) == CONTENT
    assert digest(target) == SHA and seen[-1] == (len(body), len(body))
    assert [each.name for each in target.parent.iterdir()] == [name]


@pytest.mark.parametrize("first", [b"something else", CONTENT[:-3]], ids=["other", "short"])
def test_a_wrong_answer_is_asked_for_once_more(server: Server, tmp_path: Path, first: bytes) -> None:
    fetch(DataSource(SHA, server.put("/a.txt", first, CONTENT)), tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_bytes() == CONTENT and len(server.asked) == 2


@pytest.mark.parametrize(
    ("path", "body", "member", "words"),
    [
        ("/a.txt", b"something else", None, "checksum"),
        ("/a.gz", gzip.compress(CONTENT, mtime=0)[:-20], None, "unpacked"),
        ("/a.gz", b"<html>not found</html>", None, "unpacked"),
        ("/a.zip", zipped(**{"other.txt": CONTENT}), "train.txt", "no train.txt"),
        ("/a.zip", b"PK no archive", "train.txt", "unpacked"),
    ],
)
def test_what_is_wrong_twice_is_never_used(
    server: Server, tmp_path: Path, path: str, body: bytes, member: str | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as raised:
        fetch(DataSource(SHA, server.put(path, body), member), tmp_path / "a.txt")
    assert path in str(raised.value) and len(server.asked) == 2
    assert not list(tmp_path.iterdir())


def locked(archive: bytes) -> bytes:
    """The same archive, whose members are said to be encrypted."""
    found = bytearray(archive)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        found[found.index(mark) + place] |= 1
    return bytes(found)


def test_an_encrypted_archive_is_refused(server: Server, tmp_path: Path) -> None:
    source = DataSource(SHA, server.put("/a.zip", locked(zipped(**{"train.txt": CONTENT}))), "train.txt")
    with pytest.raises(InvalidInput, match=r"a.zip: download failed after 2 attempts: .* encrypted"):
        fetch(source, tmp_path / "a.txt")
    assert len(server.asked) == 2 and not list(tmp_path.iterdir())


def test_an_archive_that_unpacks_to_too_much_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LARGEST", 5000)
    source = DataSource(SHA, server.put("/a.tar.gz", tarred("set/other.txt")), "set/train.txt")
    with pytest.raises(InvalidInput, match="more than 5000 bytes"):
        fetch(source, tmp_path / "a.txt")
    assert not list(tmp_path.iterdir())


class RawServer:
    """Answers each connection with the next of these bytes, whatever they are, and closes it."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.asked = list(answers), 0
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while self.rfile.readline().strip():
                    pass
                outer.asked += 1
                self.wfile.write(outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0])

        self.inner = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.inner.server_address[1]}/a.txt"
        self.thread = threading.Thread(target=self.inner.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "RawServer":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.shutdown()
        self.thread.join()
        self.inner.server_close()


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "cut": (CHUNKED + b"400\r\nonly this", "IncompleteRead"),
    "no-size": (CHUNKED + b"zz\r\nwhat", "IncompleteRead"),
    "no-status": (b"what is this\r\n\r\n", "what is this"),
    "nothing": (b"", "closed connection without response"),
    "long-line": (HEAD + b"X: " + b"a" * 70000 + b"\r\n\r\n", "header line"),
    "many-headers": (HEAD + b"X: a\r\n" * 200 + b"\r\n", "100 headers"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_answer_is_one_error_after_two_attempts(tmp_path: Path, kind: str) -> None:
    answer, said = BROKEN[kind]
    with RawServer(answer) as server, pytest.raises(InvalidInput, match=said) as raised:
        fetch(DataSource(SHA, server.url), tmp_path / "a.txt")
    assert f"{server.url}: download failed after 2 attempts: " in str(raised.value) and server.asked == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", BROKEN)
def test_after_a_broken_answer_the_next_one_is_used(tmp_path: Path, kind: str) -> None:
    whole = CHUNKED + f"{len(CONTENT):x}\r\n".encode() + CONTENT + b"\r\n0\r\n\r\n"
    with RawServer(BROKEN[kind][0], whole) as server:
        fetch(DataSource(SHA, server.url), tmp_path / "a.txt")
    assert server.asked == 2 and (tmp_path / "a.txt").read_bytes() == CONTENT


def test_a_server_that_drips_is_given_up(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 61)  # a minute goes by at each look
    monkeypatch.setattr(download, "monotonic", lambda: next(clock))
    with pytest.raises(InvalidInput, match=r"only \d+ bytes came in 60 seconds"):
        fetch(DataSource(SHA, server.put("/a.txt", CONTENT)), tmp_path / "a.txt")


def test_a_missing_page_is_said(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Not Found"):
        fetch(DataSource(SHA, f"{server.url}/none.txt"), tmp_path / "a.txt")
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/a.zip", zipped(**{"set/train.txt": CONTENT, "../evil": b"x"})),
        ("/a.zip", zipped(**{"set/train.txt": CONTENT, "/etc/evil": b"x"})),
        ("/a.zip", zipped(**{"set/train.txt": CONTENT, "a\\..\\..\\evil": b"x"})),
        ("/a.tar.gz", tarred("set/../../evil")),
        ("/a.tar.gz", tarred("/evil")),
        ("/a.tar.gz", tarred("set/link", link="/etc/passwd")),
    ],
    ids=["zip-up", "zip-root", "zip-backslash", "tar-up", "tar-root", "tar-link"],
)
def test_archives_with_tricks_are_refused(server: Server, tmp_path: Path, path: str, body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not used"):
        fetch(DataSource(SHA, server.put(path, body), "set/train.txt"), tmp_path / "sets" / "a.txt")
    assert len(server.asked) == 1 and not list((tmp_path / "sets").iterdir())
    assert [each.name for each in tmp_path.iterdir()] == ["sets"]


@pytest.mark.parametrize("url", ["http://example.com/a", "ftp://example.com/a", "file:///etc/passwd"])
def test_nothing_but_https_is_asked(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidInput, match="not https"):
        fetch(DataSource(SHA, url), tmp_path / "a.txt")


def test_nor_where_a_server_sends_on_to_it(server: Server, tmp_path: Path) -> None:
    url = server.put("/a.txt", b"", code=302, Location="http://example.com/a.txt")
    with pytest.raises(InvalidInput, match="not https"):
        fetch(DataSource(SHA, url), tmp_path / "a.txt")
    url = server.put("/b.txt", b"", code=302, Location=server.put("/c.txt", CONTENT))
    fetch(DataSource(SHA, url), tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == CONTENT
