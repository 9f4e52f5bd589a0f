"""`import longspan`: what a PyTorch user types first."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import longspan
from longspan.decode import Beam
from longspan.errors import InvalidInput, InvalidOption, Unsupported

PACKAGES = sorted(path.name for path in Path(longspan.__file__).parent.iterdir() if path.is_dir())


def test_every_name_is_there_and_hides_no_package() -> None:
    assert set(longspan.__all__) == {"__version__", *longspan._HOMES}
    for name in longspan.__all__:
        assert getattr(longspan, name) is not None
        assert name not in PACKAGES
    assert set(longspan.__all__) <= set(dir(longspan))
    with pytest.raises(AttributeError, match="has no attribute 'swop'"):
        _ = longspan.swop


def test_the_import_does_not_load_torch() -> None:
    code = "import sys, longspan; assert longspan.__version__; print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "False\n"


def test_the_names_that_editors_see_are_those_that_are_loaded() -> None:
    """The imports for type checkers and the table of homes say the same."""
    import ast

    tree = ast.parse(Path(longspan.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == longspan._HOMES


def heads(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(2, 4, 9, 8, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
def test_attend_is_torchs_attention_for_softmax(causal: bool) -> None:
    q, k, v = heads()
    expected = scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(longspan.attend("softmax", q, k, v, causal=causal), expected)


def test_attend_takes_options_masks_and_types() -> None:
    q, k, v = heads()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    out = longspan.attend("window", q, k, v, window=2, key_mask=mask)
    wild = v.masked_fill(~mask[:, None, :, None], 1e6)
    assert torch.equal(longspan.attend("window", q, k, wild, window=2, key_mask=mask)[1, :, :3], out[1, :, :3])
    assert longspan.attend("linear", *heads(torch.float32)).dtype == torch.float32
    (image,) = [longspan.attend("axial", *heads(), width=3)]
    assert image.shape == (2, 4, 9, 8)


def test_attend_draws_the_same_features_every_time() -> None:
    q, k, v = heads()
    state = torch.get_rng_state()
    one, other = (longspan.attend("performer", q, k, v, features=16) for _ in range(2))
    assert torch.equal(one, other) and torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(longspan.attend("performer", q, k, v, features=16, seed=1), one)


def test_attend_refuses_what_a_function_cannot_do() -> None:
    q, k, v = heads()
    with pytest.raises(Unsupported, match=r"linformer has weights of its own .*longspan\.MultiHead\(width, heads=4"):
        longspan.attend("linformer", q, k, v, max_length=9)
    with pytest.raises(InvalidInput, match=r"q must be \(…, heads, length, width\)"):
        longspan.attend("softmax", q[0, 0], k[0, 0], v[0, 0])


def test_models_by_name() -> None:
    assert "gpt2" in longspan.list_models("gpt*") and "decoder" in longspan.list_models()
    assert "decoder" not in longspan.list_models(presets_only=True)
    model = longspan.create_model("decoder", vocabulary=11, width=16, layers=2, heads=2, attention="window")
    assert (
        longspan.generate(model, [[1, 2], [3]], max_new=3).tokens
        == longspan.generate(model, [[1, 2], [3]], max_new=3).tokens
    )


def test_attention_by_ability() -> None:
    assert "window" in longspan.list_attention(causal=True, streaming=True)
    assert "nystrom" not in longspan.list_attention(causal=True)
    assert longspan.list_attention("lin*") == ["linformer", "linear"]


def test_check_is_the_audit() -> None:
    certificate = longspan.check(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval())
    assert {"determinism", "batch_invariance"} <= {finding.check for finding in certificate.findings}


def test_generate_refuses_what_it_would_otherwise_ignore() -> None:
    model = longspan.create_model("decoder", vocabulary=11, width=16, layers=1, heads=2)
    with pytest.raises(InvalidOption, match=r"call longspan\.decode\.beam_search"):
        longspan.generate(model, [[1, 2]], beam=Beam(beams=2))
    with pytest.raises(InvalidOption, match="max_new must be at least 1"):
        longspan.generate(model, [[1, 2]], max_new=0)
    for text in ("abc", ["abc"]):
        with pytest.raises(InvalidInput, match="takes lists of token ids, not text"):
            longspan.generate(model, text)
