"""Image: grey, in the order of the raster, the same from every form of CIFAR-10; no pickle is run."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.arena.tasks.examples import SequenceData, Splits
from longspan.arena.tasks.images import luminance, shrink
from longspan.arena.tasks.registry import DataFolders, build
from longspan.errors import InvalidInput, InvalidOption

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def content() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Images (examples, 32, 32, 3) and labels by the names of batches."""
    generator = np.random.default_rng(0)
    names = [*BATCHES, "test_batch"]
    return {
        name: (generator.integers(256, size=(6, 32, 32, 3), dtype=np.uint8), generator.integers(10, size=6))
        for name in names
    }


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_arrays(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parts = content()
    for name, keys in (("train_30", BATCHES), ("test_6", ["test_batch"])):
        x, y = (np.concatenate([parts[key][part] for key in keys]) for part in (0, 1))
        np.savez(folder / f"{name}.npz", x=x, y=y.astype(np.uint8), classes=np.array(list("abcdefghij")))


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in content().items():
        rows = np.concatenate([labels.astype(np.uint8)[:, None], planes(images)], 1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_pickled(folder: Path, protocol: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in content().items():
        held = {
            b"batch_label": b"of five",
            b"data": planes(images),
            b"labels": labels.tolist(),
            b"filenames": [b"a.png"],
        }
        (folder / name).write_bytes(pickle.dumps(held, protocol))


def splits(root: Path | None, seed: int = 0, **options: Any) -> Splits:
    return build("image", options).splits(DataFolders(root, Path("unused")), seed)


def hashes(found: Splits) -> list[str]:
    return [part.digest() for part in (found.train, found.held_out, found.test)]


def test_every_form_gives_the_same(tmp_path: Path) -> None:
    write_arrays(tmp_path / "one" / "cifar10")
    write_binary(tmp_path / "two" / "cifar-10-batches-bin")
    write_pickled(tmp_path / "three" / "cifar-10-batches-py")
    write_pickled(tmp_path / "four" / "cifar10" / "cifar-10-batches-py", protocol=4)
    found = [splits(tmp_path / name) for name in ("one", "two", "three", "four")]
    found += [splits(None, files=str(tmp_path / name)) for name in ("one/cifar10", "two", "three/cifar-10-batches-py")]
    assert len({tuple(hashes(each)) for each in found}) == 1
    assert [each.notes["layout"] for each in found[:3]] == ["npz files", "cifar-10-batches-bin", "cifar-10-batches-py"]


def test_pickles_as_python_2_wrote_them_are_read(tmp_path: Path) -> None:
    """The original's: short strings instead of bytes, and numpy by the name it had."""
    write_pickled(tmp_path)
    wanted = hashes(splits(None, files=str(tmp_path)))
    for name, (images, labels) in content().items():
        rows = planes(images).tobytes()
        listed = b"(" + b"".join(b"K" + bytes([label]) for label in labels.tolist()) + b"l"
        array = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
            b"(K\x01(K\x06M\x00\x0ctcnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            b"\x89T" + len(rows).to_bytes(4, "little") + rows + b"tb"
        )
        (tmp_path / name).write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels" + listed + b"u.")
    assert hashes(splits(None, files=str(tmp_path))) == wanted


def test_images_are_grey_in_the_order_of_the_files(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar10")
    found = splits(tmp_path)
    parts = content()
    images = np.concatenate([parts[name][0] for name in BATCHES]).astype(float)
    grey = np.rint(images @ [0.2989, 0.5870, 0.1140]).astype(int).reshape(30, 1024)
    got = np.stack([part.sequence(n) for part in (found.train, found.held_out) for n in range(len(part))])
    assert np.array_equal(got, grey) and got.dtype == np.uint8
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [27, 3, 6]
    assert (found.vocabulary, found.classes, found.length, found.padded, found.grid) == (256, 10, 1024, False, (32, 32))
    labels = np.concatenate([found.train.labels, found.held_out.labels])
    assert np.array_equal(labels, np.concatenate([parts[name][1] for name in BATCHES]))
    assert hashes(found) == hashes(splits(tmp_path, seed=1)) == list(found.notes["hashes"].values())
    batch = SequenceData(found.test, 3, length=found.length, padded=found.padded).load([0, 1, 2], 0)
    assert batch["ids"].shape == (3, 1024) and "key_mask" not in batch
    assert found.notes["stand_in"].startswith("Not all of CIFAR-10: its files here have 30 of 50,000 train examples")


def test_luminance_is_rounded_to_bytes() -> None:
    pixels = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [1, 2, 3]], dtype=np.uint8)
    assert luminance(pixels).tolist() == [0, 255, 76, 150, 29, 2] and luminance(pixels).dtype == np.uint8


def test_smaller_images_are_means_of_squares(tmp_path: Path) -> None:
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    assert shrink(images, 8)[0, 0, :2].tolist() == [9, 11]  # 8.5 and 10.5, rounded up
    assert np.array_equal(shrink(images, 16), images)
    assert shrink(np.full((1, 32, 32), 255, dtype=np.uint8), 4).tolist() == [[[255] * 4] * 4]
    write_binary(tmp_path / "cifar10")
    found = splits(tmp_path, size=8, sizes=[10, 2, 4])
    assert (found.length, found.grid) == (64, (8, 8))
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [10, 2, 4]
    assert len(found.test.sequence(3)) == 64
    whole, few = splits(tmp_path), splits(tmp_path, sizes=[10, 2, 4])
    every = {whole.train.sequence(n).tobytes() for n in range(27)}
    assert {few.train.sequence(n).tobytes() for n in range(10)} < every
    assert hashes(few) != hashes(splits(tmp_path, seed=1, sizes=[10, 2, 4]))


def test_baselines(tmp_path: Path) -> None:
    labels = np.arange(40) % 4
    images = np.broadcast_to((labels * 60)[:, None, None, None], (40, 32, 32, 3)).astype(np.uint8)
    for name in ("train", "test"):
        np.savez(tmp_path / f"{name}.npz", x=images, y=labels.astype(np.uint8))
    task = build("image", {"files": str(tmp_path)})
    scores = task.baselines(task.splits(DataFolders(None, tmp_path)))
    assert scores == {"majority": 0.25, "mean_intensity": 1.0, "nearest_mean": 1.0}


class Planted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_planted_pickle_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    write_pickled(tmp_path / "cifar10")
    held = {b"data": Planted(tmp_path / "planted"), b"labels": [0]}
    (tmp_path / "cifar10" / "data_batch_3").write_bytes(pickle.dumps(held, protocol))
    with pytest.raises(InvalidInput, match=r"data_batch_3 was not read: it asks for (posix|os|nt).mkdir"):
        splits(tmp_path)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"\x80\x02cnumpy\nfromfile\n(X\x01\x00\x00\x00atR.", r"asks for numpy.fromfile"),
        (b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.", r"asks for builtins.eval"),
        (b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.", r"another encoding"),
        (b"\x80\x02cnumpy\ndtype\n}b.", r"no whole batch of CIFAR-10"),
        (b"\x80\x02]q\x00.", r"must hold a table with data and labels, not list"),
        (b"\x80\x02}X\x04\x00\x00\x00data]s.", r"has no 'labels'; it has data"),
        (b"\x80\x02}(X\x04\x00\x00\x00data]X\x06\x00\x00\x00labels](K\x0bes.", r"no whole batch"),
        (
            b"\x80\x02}(X\x04\x00\x00\x00data]X\x06\x00\x00\x00labels](K\x0beu.",
            r"labels must be a list of numbers 0 to 9",
        ),
        (b"\x80\x02}(X\x04\x00\x00\x00data]X\x06\x00\x00\x00labels](K\x01eu.", r"data must be an array, not list"),
        (b"", r"no whole batch of CIFAR-10"),
    ],
)
def test_a_wrong_pickle_is_named(program: bytes, said: str, tmp_path: Path) -> None:
    write_pickled(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(program)
    with pytest.raises(InvalidInput, match=said) as error:
        splits(None, files=str(tmp_path))
    assert "data_batch_2" in str(error.value) and "\n" not in str(error.value)


def test_pickled_arrays_of_another_shape_or_type(tmp_path: Path) -> None:
    write_pickled(tmp_path)
    for array, said in (
        (np.zeros((3, 3072), np.uint8), r"expected 2 images of 3072 bytes.*got the shape \(3, 3072\)"),
        (np.zeros((2, 3072), np.int64), r"data must be bytes, row by row"),
        (np.zeros((2, 3072), np.uint8, order="F"), r"data must be bytes, row by row"),
    ):
        (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": array, b"labels": [0, 1]}, 2))
        with pytest.raises(InvalidInput, match=said):
            splits(None, files=str(tmp_path))


def test_a_wrong_image_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path)
    path = tmp_path / "data_batch_4.bin"
    whole = path.read_bytes()
    for content_of, said in (
        (whole[:-100], r"data_batch_4.bin, image 5: 2973 bytes are left of the 3073"),
        (
            whole[: 2 * 3073] + b"\x0a" + whole[2 * 3073 + 1 :],
            r"data_batch_4.bin, image 2: the label 10 is none of 0..9",
        ),
        (b"", r"data_batch_4.bin is empty"),
    ):
        path.write_bytes(content_of)
        with pytest.raises(InvalidInput, match=said):
            splits(None, files=str(tmp_path))


def test_wrong_arrays_are_named(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    path = tmp_path / "test_6.npz"
    whole = path.read_bytes()
    for x, y, said in (
        (np.zeros((2, 28, 28, 3), np.uint8), [0, 1], r"test_6.npz: expected images of 32 × 32 × 3, got 28 × 28 × 3"),
        (np.zeros((2, 32, 32), np.uint8), [0, 1], r"got 32 × 32 × 1"),
        (np.zeros((2, 32, 32, 3), np.float32), [0, 1], r"expected images of bytes"),
        (np.zeros((2, 32, 32, 3), np.uint8), [0, 11], r"test_6.npz, image 1: the label 11"),
        (np.zeros((2, 32, 32, 3), np.uint8), [0], r"has 2 images and 1 labels"),
        (np.zeros((0, 32, 32, 3), np.uint8), [], r"has no images"),
    ):
        np.savez(path, x=x, y=np.array(y, dtype=np.uint8))
        with pytest.raises(InvalidInput, match=said):
            splits(None, files=str(tmp_path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"test_6.npz is no .npz file"):
        splits(None, files=str(tmp_path))


def test_damaged_packed_arrays_are_named(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    images, labels = content()["test_batch"]
    path = tmp_path / "test_6.npz"
    np.savez_compressed(path, x=images // 8, y=labels)
    whole = path.read_bytes()
    path.write_bytes(whole[:300] + bytes(2000) + whole[2300:])
    with pytest.raises(InvalidInput, match=r"test_6.npz is (damaged|no .npz file)"):
        splits(None, files=str(tmp_path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    for root, options in ((None, {}), (tmp_path, {}), (None, {"files": str(tmp_path)})):
        with pytest.raises(InvalidInput) as error:
            splits(root, **options)
        said = str(error.value)
        wanted = ("train*.npz", "data_batch_1.bin", "test_batch", "https://www.cs.toronto.edu/~kriz/cifar.html")
        assert all(part in said for part in wanted) and "listops, pathfinder and recall" in said
    write_binary(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_2.bin").unlink()
    with pytest.raises(InvalidInput, match=r"cifar10 lacks data_batch_2.bin"):
        splits(tmp_path)


@pytest.mark.parametrize(("options", "said"), [({"size": 12}, "divisor of 32"), ({"size": 64}, "4 to 32")])
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build("image", options)


@pytest.mark.data
def test_the_part_of_cifar_is_whole(data: Path) -> None:
    task = build("image", {})
    found = task.splits(DataFolders(data, data))
    assert [len(part) for part in (found.train, found.held_out, found.test)] == [9000, 1000, 2000]
    assert np.bincount(found.test.labels).tolist() == [200] * 10 and found.train.tokens.max() == 255
    assert "10,000 of 50,000" in found.notes["stand_in"]
    scores = task.baselines(found)
    assert scores["majority"] == 0.1 and scores["mean_intensity"] == 0.15 and 0.22 < scores["nearest_mean"] < 0.26
