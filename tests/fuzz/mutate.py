"""Damage files on purpose, by a seed: bytes, JSON values, TOML values, and what lies inside packed files."""

import gzip
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**15,
    2**16,
    10**6,
    10**9,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    10**30,
)
DEEP = "[" * 3000 + "]" * 3000
LONG = "9" * 6000
VALUES = (
    "",
    "x",
    "\0",
    "é▁😀",
    "x" * 3000,
    "../../x",
    "nan",
    True,
    False,
    None,
    [],
    {},
    [[]],
    [None],
    {"": {}},
    -0.5,
    1e308,
)


def mutate(path: Path, seed: int) -> None:
    """Damages one file, in a way that fits what it is."""
    chance = random.Random(f"{path.name} {seed}")
    data = path.read_bytes()
    ways: list[Callable[[bytes, random.Random], bytes]] = [_bytes, _bytes]
    name = path.name
    if name.endswith((".json", ".index.json")):
        ways = [_json, _json, _json, _raw_json, _bytes]
    elif name.endswith(".jsonl"):
        ways = [_json_line, _json_line, _raw_json, _bytes]
    elif name.endswith((".toml", ".txt", ".tsv", ".csv", ".vec", ".conll")):
        ways = [_text, _text, _bytes]
    elif name.endswith(".safetensors"):
        ways = [_safetensors, _safetensors, _bytes]
    elif name.endswith(".gz"):
        ways = [_gzip, _bytes]
    elif zipfile.is_zipfile(path):
        ways = [_zip, _zip, _bytes]
    path.write_bytes(chance.choice(ways)(data, chance))


def _at(data: bytes, chance: random.Random) -> int:
    """A place; half of all are near the beginning, where headers are."""
    most = len(data) if chance.random() < 0.5 else min(len(data), 400)
    return chance.randrange(max(1, most))


def _bytes(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    at = _at(data, chance)
    way = chance.randrange(8)
    if way == 0:
        for _ in range(chance.randint(1, 6)):
            if found:
                found[_at(data, chance)] ^= 1 << chance.randrange(8)
    elif way == 1:
        del found[at:]
    elif way == 2:
        found[at:at] = found[at : at + chance.choice((1, 8, 64, 512))] * chance.choice((1, 2, 50))
    elif way == 3:
        del found[at : at + chance.choice((1, 4, 8, 32))]
    elif way == 4:
        number = chance.choice(NUMBERS) & 0xFFFFFFFFFFFFFFFF
        form = chance.choice(("<I", "<Q", "<B", "<f"))
        given = number & {"<I": 0xFFFFFFFF, "<B": 0xFF}.get(form, number)
        value = chance.choice((float("nan"), float("inf"), 1e38)) if form == "<f" else given
        packed = struct.pack(form, value)
        at -= at % chance.choice((1, 4, 8))
        found[at : at + len(packed)] = packed
    elif way == 5:
        found[at:at] = chance.randbytes(chance.choice((1, 4, 100)))
    elif way == 6:
        size = chance.choice((4, 16, 128))
        found[at : at + size] = bytes(len(found[at : at + size]))
    else:
        size, other = chance.choice((4, 16, 64)), _at(data, chance)
        found[at : at + size] = data[other : other + size]
    return bytes(found)


def _value(chance: random.Random) -> Any:
    return deepcopy(chance.choice((*NUMBERS, *VALUES, *VALUES)))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    held = [value]
    while held:
        each = held.pop()
        items = (
            list(each.items()) if isinstance(each, dict) else list(enumerate(each)) if isinstance(each, list) else []
        )
        found.extend((each, key) for key, _ in items)
        held.extend(part for _, part in items)
    return found


def _changed(value: Any, chance: random.Random) -> Any:
    places = _places(value)
    if not places or chance.random() < 0.03:
        return _value(chance)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        places = _places(value)
        if not places:
            break
        # By depth first: a vocabulary has many entries, and what stands around it few.
        few = [place for place in places if len(place[0]) < 40] or places
        owner, key = chance.choice(few if chance.random() < 0.8 else places)
        way = chance.randrange(8)
        if way < 5:
            owner[key] = _value(chance)
        elif way == 5:
            del owner[key]
        elif way == 6:
            other, name = chance.choice(places)
            owner[key] = (
                json.loads(json.dumps(other[name]))
                if name in (other if isinstance(other, dict) else range(len(other)))
                else 0
            )
        elif isinstance(owner, dict):
            owner[chance.choice(("", "x", f"{key}2"))] = owner.pop(key)
        else:
            owner.extend(deepcopy(owner[:5]))
    return value


def _json(data: bytes, chance: random.Random) -> bytes:
    return json.dumps(_changed(json.loads(data), chance), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _raw_json(data: bytes, chance: random.Random) -> bytes:
    """What `json.dumps` does not write: nesting, long numbers, NaN, keys twice."""
    text = data.decode()
    spots = [found.span() for found in re.finditer(r'-?\d+(?:\.\d+)?|"[^"]*"|true|false|null', text)]
    if not spots:
        return data
    start, stop = chance.choice(spots)
    return (
        text[:start] + chance.choice((DEEP, LONG, f"-{LONG}", "NaN", "-Infinity", "1e999", '"\\ud800"')) + text[stop:]
    ).encode()


def _json_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    full = [number for number, line in enumerate(lines) if line.strip()]
    number = chance.choice(full)
    lines[number] = _json(lines[number], chance)
    return b"\n".join(lines)


def _text(data: bytes, chance: random.Random) -> bytes:
    """A word or number is another, or far too long; a line is gone, or there twice; columns are others."""
    text = data.decode("utf-8", "replace")
    spots = [found.span() for found in re.finditer(r"\S+", text)]
    if not spots:
        return data
    start, stop = chance.choice(spots)
    values = [
        *map(str, NUMBERS),
        *map(str, VALUES),
        LONG,
        DEEP,
        "{}",
        "[[]]",
        "1979-05-27",
        "'",
        '"',
        "\t",
        "\n\n",
        "\r",
        "nan",
        "-",
        "#",
    ]
    given = chance.choice((*values, text[start:stop] * 50, "", "a." * 500 + "a = 1\n"))
    return (text[:start] + given + text[stop:]).encode("utf-8", "replace")


def _safetensors(data: bytes, chance: random.Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _json(data[8 : 8 + size], chance) if chance.random() < 0.7 else _raw_json(data[8 : 8 + size], chance)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _gzip(data: bytes, chance: random.Random) -> bytes:
    inner = gzip.decompress(data)
    return gzip.compress((_text if chance.random() < 0.5 else _bytes)(inner, chance), mtime=0)


def _zip(data: bytes, chance: random.Random) -> bytes:
    """One member is damaged, and the archive is whole again."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    chosen = chance.randrange(len(members))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (info, content) in enumerate(members):
            archive.writestr(
                info.filename, _bytes(content, chance) if number == chosen else content, info.compress_type
            )
    return out.getvalue()


__all__ = ["mutate"]
