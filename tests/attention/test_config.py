"""AttentionConfig: a mechanism by name, its defaults, and its own dropout."""

import pytest

from longspan import config
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidOption
from longspan.models import build


def test_configs_with_the_same_effective_options_are_equal():
    assert AttentionConfig("window") == AttentionConfig("window", window=128)
    assert AttentionConfig("window") != AttentionConfig("window", window=127)
    assert AttentionConfig("window") != AttentionConfig("window", dropout=0.1)
    assert AttentionConfig("window") != AttentionConfig("softmax")
    assert AttentionConfig("window") != "window"


def test_a_layer_may_have_its_own_dropout():
    read = AttentionConfig.read({"name": "window", "window": 3, "dropout": 0.3})
    assert read == AttentionConfig("window", window=3, dropout=0.3) and AttentionConfig.read(config.plain(read)) == read
    assert repr(read) == "AttentionConfig('window', dropout=0.3, window=3)"
    model = build("encoder", width=16, layers=3, heads=2, hidden=8, attention_dropout=0.1, attention=["softmax", read])
    assert [block.mixer.mechanism.dropout for block in model.stack.blocks] == [0.1, 0.3, 0.1]
    none = build("encoder", width=16, layers=1, heads=2, hidden=8, attention=[{"name": "linear", "dropout": 0.3}])
    assert none.stack.blocks[0].mixer.mechanism.dropout == 0  # it has no weights to drop


def test_an_invalid_option_is_refused_immediately():
    with pytest.raises(InvalidOption, match="window has no option 'widow': did you mean 'window'"):
        AttentionConfig("window", widow=3)


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ({"name": "image_local", "behind": 64, "ring": True}, {"memory_after": 64, "ring": True}),
        ({"name": "reformer", "form": "released", "before": 2}, {"form": "released", "chunks_before": 2}),
        ({"name": "reformer", "form": "released", "after": 1}, {"form": "released", "chunks_after": 1}),
        ({"name": "memory_compressed", "first": False}, {"first_slot": False}),
    ],
    ids=str,
)
def test_configs_are_read_with_the_former_names_of_options(old: dict, current: dict):
    read = AttentionConfig.read(old)
    assert read == AttentionConfig(old["name"], **current)
    assert config.plain(read) == {"name": old["name"], **current}
    with pytest.raises(InvalidOption, match="and its former name"):
        AttentionConfig.read({**old, **current})
