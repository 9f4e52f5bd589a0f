"""Folders of images: labels, sizes, channels, and what cannot be read."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longspan.data.images.image_folders import image_size, read_image_folder
from longspan.errors import InvalidInput, InvalidOption, Unsupported


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "cat" / "1.png", np.full((4, 6), 10, np.uint8))
    save(tmp_path / "cat" / "2.png", np.arange(72, dtype=np.uint8).reshape(4, 6, 3))
    save(tmp_path / "dog" / "3.bmp", np.full((4, 6, 3), 200, np.uint8))
    return tmp_path


def test_pixels_and_labels(folder: Path) -> None:
    pictures = read_image_folder(folder)
    assert pictures.names == ("cat", "dog") and pictures.labels.tolist() == [0, 0, 1]
    assert pictures.pixels.shape == (3, 4, 6, 3) and image_size(folder) == (4, 6)
    assert (pictures.pixels[0] == 10).all() and (pictures.pixels[1].ravel() == np.arange(72)).all()
    grey = read_image_folder(folder, grey=True)
    assert grey.pixels.shape == (3, 4, 6, 1) and (grey.pixels[2] == 200).all()
    (folder / "cat" / "2.png").unlink()
    (folder / "dog" / "3.bmp").unlink()
    save(folder / "dog" / "3.png", np.full((4, 6), 9, np.uint8))
    assert read_image_folder(folder).channels == 1  # all of them are grey


def test_images_of_other_sizes_are_scaled(folder: Path) -> None:
    save(folder / "dog" / "4.jpg", np.full((9, 9, 3), 50, np.uint8))
    with pytest.raises(InvalidInput, match=r"dog/4\.jpg has 9 × 9 pixels, and .*cat/1\.png 4 × 6: .*--resize 32"):
        read_image_folder(folder)
    assert read_image_folder(folder, (5,)).size == image_size(folder, (5,)) == (5, 5)
    pictures = read_image_folder(folder, (2, 3))
    assert pictures.size == (2, 3) and (pictures.pixels[0] == 10).all()
    with pytest.raises(InvalidOption, match="resize is one side, or height and width, not 3 numbers"):
        read_image_folder(folder, (1, 2, 3))


def test_what_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"cat/1\.png: no training image has the label 'cat'; they have bird, dog"):
        read_image_folder(folder, names=("bird", "dog"))
    with pytest.raises(InvalidInput, match="no folders that name their labels"):
        read_image_folder(folder / "cat")
    (folder / "dog" / "broken.png").write_bytes(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"broken\.png is not a readable image"):
        read_image_folder(folder)
    (folder / "dog" / "broken.png").rename(folder / "dog" / "notes.txt")
    with pytest.raises(InvalidInput, match=r"mixes formats: 1\.png and .*dog/notes\.txt"):
        read_image_folder(folder)
    (folder / "dog" / "notes.txt").unlink()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Unsupported, match="images need the package pillow; install it: pip install pillow"):
        read_image_folder(folder)
