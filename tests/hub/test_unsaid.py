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
        ("bert", {"groups": 2}, "a bert there has groups = 4, and this model has 2"),
        ("bert", {"place": "pre"}, "there has place = 'post', and this model has 'pre'"),
        ("bert", {"head_dim": 8}, "there has head_dim = 6, and this model has 8"),
        (
            "electra",
            {"attention": [{"name": "window", "window": 4}]},
            "an? electra there has attention = .*and this model has .*window",
        ),
        ("electra", {"scale": True}, "there has scale = False, and this model has True"),
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
