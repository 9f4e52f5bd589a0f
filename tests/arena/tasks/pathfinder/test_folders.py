import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.arena.tasks.pathfinder.folders import read_images
from longspan.arena.tasks.registry import DataFolders, build
from longspan.errors import InvalidInput, Unsupported


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Twelve images in two batches, one of which has no bytes."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "metadata").mkdir()
    for batch in range(2):
        (tmp_path / f"imgs/{batch}").mkdir(parents=True)
        rows = []
        for number in range(6):
            pixels = np.full((16, 16), 20 * batch + number, dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / f"imgs/{batch}/sample_{number}.png")
            rows.append(f"imgs/{batch} sample_{number}.png {number} {number % 2} 1.0 14 4 2 0.5 1 1")
        (tmp_path / f"metadata/{batch}.npy").write_text("\n".join(rows) + "\n")
    (tmp_path / "imgs/1/sample_2.png").write_bytes(b"")
    return tmp_path


def test_the_release_is_read_in_its_order_without_empty_images(release: Path) -> None:
    found = read_images(release, 16)
    assert found.pixels[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 20, 21, 23, 24, 25] and found.empty == 1
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1]
    splits = build("pathfinder", {"size": 16, "files": str(release), "train": 5}).splits(DataFolders(None, release))
    assert [len(each) for each in (splits.train, splits.held_out, splits.test)] == [5, 1, 2]
    assert splits.test.tokens[0] == 24 and splits.notes["empty"] == 1


def test_errors_name_the_fault(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"sample_0.png is 16 × 16; size 32 was asked for"):
        read_images(release, 32)
    with pytest.raises(InvalidInput, match=r"0.npy, line 1: contour 14, and contour_length 9"):
        read_images(release, 16, 9)
    path = release / "imgs/0/sample_3.png"
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    with pytest.raises(InvalidInput, match=r"imgs/0/sample_3.png is no image, or damaged"):
        read_images(release, 16)
    path.unlink()
    with pytest.raises(InvalidInput, match=r"0.npy, line 4: there is no file .*sample_3.png"):
        read_images(release, 16)
    path.write_bytes(whole)
    table = release / "metadata/1.npy"
    table.write_text("imgs/1 sample_0.png 0 yes\n")
    with pytest.raises(InvalidInput, match=r"1.npy, line 1: expected folder, file, number, label"):
        read_images(release, 16)
    np.save(table, np.zeros(3))
    with pytest.raises(InvalidInput, match=r"is an array; the release's .npy files are lines of text"):
        read_images(release, 16)
    with pytest.raises(InvalidInput, match=r"there is no nowhere or .*nowhere; without the option files"):
        build("pathfinder", {"files": "nowhere"}).splits(DataFolders(release, release))
    with pytest.raises(InvalidInput, match=r"neither a folder metadata.* nor \.npz files"):
        read_images(release / "imgs", 16)

    real = builtins.__import__

    def without(name: str, *others: Any) -> Any:
        if name == "PIL":
            raise ImportError
        return real(name, *others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Unsupported, match=r"pillow, which is not installed: pip install longspan\[arena\]"):
        read_images(release, 16)


def test_npz_files_are_chosen_by_size_and_contour(tmp_path: Path) -> None:
    for length in (6, 14):
        np.savez(
            tmp_path / f"of{length}.npz",
            x=np.full((4, 16, 16), length, dtype=np.uint8),
            y=np.array([0, 1, 0, 1]),
            contour_length=np.full(4, length),
        )
    assert (read_images(tmp_path, 16, 14).pixels == 14).all() and len(read_images(tmp_path / "of6.npz", 16).labels) == 4
    with pytest.raises(InvalidInput, match=r"several lengths \(of14.npz: 14, of6.npz: 6\): give contour_length"):
        read_images(tmp_path, 16)
    with pytest.raises(InvalidInput, match=r"no images of 32 × 32 and contour 6, but of14.npz \(16 × 16, contour 14\)"):
        read_images(tmp_path, 32, 6)


@pytest.mark.data
def test_images_of_the_original_code_are_read(tmp_path: Path) -> None:
    root = Path(os.environ.get("LONGSPAN_DATA", "none"))
    if not (root / "pathfinder").is_dir():
        pytest.skip("LONGSPAN_DATA names no folder with pathfinder")
    splits = build("pathfinder", {"contour_length": 14, "files": "pathfinder"}).splits(DataFolders(root, tmp_path))
    assert [len(each) for each in (splits.train, splits.held_out, splits.test)] == [2400, 300, 300]
    assert splits.train.tokens.max() == 255 and splits.grid == (32, 32)
