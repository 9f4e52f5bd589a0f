"""Images: files that are read or refused, and batches that are a function of seed, epoch and number."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.data.images.image_files import Changes, ImageData, Pictures, read_idx, read_pictures
from longspan.errors import InvalidInput


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    drawn = np.random.default_rng(0)
    return Pictures(
        drawn.integers(256, size=(20, 6, 5, 3)).astype(np.uint8), drawn.integers(4, size=20), tuple("abcd"), "here"
    )


def make(pictures: Pictures, **options: object) -> ImageData:
    mean, deviation = pictures.moments()
    return ImageData(pictures, 8, mean=mean, deviation=deviation, seed=3, **options)  # type: ignore[arg-type]


def test_idx_files_are_read(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(pixels)))
    (tmp_path / "y").write_bytes(idx(np.array([1, 0], np.uint8)))
    found = read_pictures(tmp_path / "x.gz", tmp_path / "y")
    assert np.array_equal(found.pixels[..., 0], pixels) and found.labels.tolist() == [1, 0]
    assert found.size == (3, 4) and found.channels == 1 and found.names == ("0", "1")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no idx file"),
        (b"\x89PNG1234", "no idx file of bytes: it begins with 89 50 4e 47"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], "says 2 × 3, and 5 bytes follow"),
    ],
)
def test_what_is_no_idx_file_is_said(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        read_idx(tmp_path / "x")


def test_what_is_wrong_with_npz_files_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.raises(InvalidInput, match="there is no file"):
        read_pictures(path)
    path.write_bytes(b"no zip")
    with pytest.raises(InvalidInput, match=r"no \.npz file"):
        read_pictures(path)
    np.savez(path, x=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(InvalidInput, match="no array 'y'; it has x"):
        read_pictures(path)
    np.savez(path, x=np.zeros((1, 2, 2), np.uint8), y=np.array([None]))  # which would be a pickle
    with pytest.raises(InvalidInput, match="plain arrays"):
        read_pictures(path)
    np.savez(path, x=np.zeros((2, 2, 2), np.uint8), y=np.array([0, 3]), classes=np.array(["a", "b"]))
    with pytest.raises(InvalidInput, match=r"image 1: the label 3 is none of 0\.\.1"):
        read_pictures(path)
    np.savez(path, x=np.zeros((2, 2, 2)), y=np.array([0, 1]))
    with pytest.raises(InvalidInput, match="images of bytes"):
        read_pictures(path)
    np.savez(path, x=np.zeros((2, 2, 2), np.uint8), y=np.array([0]))
    with pytest.raises(InvalidInput, match="2 images and 1 labels"):
        read_pictures(path)


def test_batches_are_normalised_and_channels_first(pictures: Pictures) -> None:
    data = make(pictures, shuffle=False)
    found = torch.cat([data.load(numbers, 0)["images"] for numbers in data.batches(0)])
    assert found.shape == (20, 3, 6, 5) and found.dtype == torch.float32
    assert found.mean((0, 2, 3)).abs().max() < 1e-6
    assert (found.std((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-6
    assert torch.equal(data.load([7], 0)["labels"], torch.from_numpy(pictures.labels[[7]]))


def test_what_is_drawn_is_of_the_example(pictures: Pictures) -> None:
    data = make(pictures, changes=Changes(crop=2, flip=True))
    numbers = [number for batch in data.batches(1) for number in batch]
    assert sorted(numbers) == list(range(20)) and numbers != [n for batch in data.batches(2) for n in batch]
    together = data.load([4, 9], 1)["images"]
    assert torch.equal(together[1:], data.load([9], 1)["images"])
    assert any(not torch.equal(data.load([n], 1)["images"], data.load([n], 2)["images"]) for n in range(20))


def test_crops_and_flips_are_moved_or_mirrored_images(pictures: Pictures) -> None:
    plain, flipped = make(pictures), make(pictures, changes=Changes(flip=True))
    mirrored = 0
    for number in range(20):
        before, after = plain.load([number], 5)["images"], flipped.load([number], 5)["images"]
        assert torch.equal(after, before) or torch.equal(after, before.flip(-1))
        mirrored += not torch.equal(after, before)
    assert 3 < mirrored < 17
    cropped = make(pictures, changes=Changes(crop=1)).load(range(20), 0)["images"]
    padded = np.pad(pictures.pixels, ((0, 0), (1, 1), (1, 1), (0, 0)))
    mean, deviation = pictures.moments()
    for number in range(20):
        places = [padded[number, y : y + 6, x : x + 5] for y in range(3) for x in range(3)]
        scaled = [((place / 255 - mean) / deviation).transpose(2, 0, 1).astype(np.float32) for place in places]
        assert any(np.array_equal(cropped[number].numpy(), place) for place in scaled)


def test_the_fingerprint_tells_other_data_and_orders(pictures: Pictures) -> None:
    seen = {
        make(pictures).fingerprint(),
        make(pictures, changes=Changes(crop=1)).fingerprint(),
        make(pictures, changes=Changes(flip=True)).fingerprint(),
    }
    seen |= {make(pictures, shuffle=False).fingerprint(), make(pictures.some(np.arange(19))).fingerprint()}
    assert len(seen) == 5 and make(pictures).fingerprint() in seen


@pytest.mark.data
def test_real_sets_are_read() -> None:
    root = Path(os.environ.get("LONGSPAN_DATA", "none"))
    if not root.is_dir():
        pytest.skip("LONGSPAN_DATA names no folder")
    found = read_pictures(root / "mnist/t10k-images-idx3-ubyte.gz", root / "mnist/t10k-labels-idx1-ubyte.gz")
    assert len(found) == 10_000 and found.labels[:5].tolist() == [7, 2, 1, 0, 4] and len(found.names) == 10
    found = read_pictures(root / "cifar10/test_2k.npz")
    assert found.pixels.shape == (2000, 32, 32, 3) and found.names[0] == "airplane"
    assert read_pictures(root / "pathfinder/pathfinder32_hard_cl14_3000.npz").channels == 1
