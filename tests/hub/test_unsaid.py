"""What a family's configuration cannot say is not written: whoever read it would build another model."""

from pathlib import Path
from typing import Any

import pytest

from longspan import hub
from longspan.errors import Unsupported
from longspan.models import build


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("bert", {"groups": 2}, "a configuration of bert cannot say groups = 2; it would be read as 4"),
        ("bert", {"norm_position": "pre"}, "cannot say norm_position = 'pre'; it would be read as 'post'"),
        ("bert", {"head_dim": 8}, "cannot say head_dim = 8; it would be read as 6"),
        ("electra", {"attention": [{"name": "window", "window": 4}]}, "cannot say attention = .*window.* read as"),
        ("electra", {"scale": True}, "cannot say scale = True"),
    ],
)
def test_what_a_configuration_cannot_say_is_not_written(
    tmp_path: Path, family: str, options: dict[str, Any], words: str
) -> None:
    sizes = {"width": 24, "layers": 4, "heads": 4, "hidden": 40, "vocabulary": 40, "max_length": 20, "segments": 2}
    kind = {"position": "learned", "embedding_norm": True, "scale": False, "activation": "gelu", "init": "xavier"}
    pooled = {"tasks": [{"task": "pool", "activation": "tanh"}]} if family == "bert" else {}
    hub.save(build("encoder", **sizes, **kind, **pooled), tmp_path / "fits", family=family)
    with pytest.raises(Unsupported, match=words):
        hub.save(build("encoder", **{**sizes, **kind, **pooled, **options}), tmp_path / "new", family=family)
    assert not (tmp_path / "new").exists()
