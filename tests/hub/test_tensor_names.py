"""The rules of names, read both ways."""

import pytest
import torch
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.hub.tensor_names import covers, match, rename, to_ours, to_theirs


def numbers(*size: int) -> Tensor:
    return torch.arange(torch.Size(size).numel(), dtype=torch.float64).reshape(size)


def test_a_module_stands_for_its_weight_and_bias_and_a_star_for_a_number() -> None:
    rules = [rename("blocks.*.q", "layer.*.query"), rename("table.weight", "words.weight")]
    found, left = match(rules, ["blocks.0.q.weight", "blocks.11.q.bias", "table.weight", "other", "blocks.x.q.weight"])
    assert [(each.ours[0], each.theirs[0]) for each in found] == [
        ("blocks.0.q.weight", "layer.0.query.weight"),
        ("blocks.11.q.bias", "layer.11.query.bias"),
        ("table.weight", "words.weight"),
    ]
    assert left == ["other", "blocks.x.q.weight"]
    assert covers(rules, "layer.3.query.bias") and not covers(rules, "layer.3.queries.bias")
    assert not covers(rules, "layer.3.query.bias.more") and not covers(rules, "xlayer.3.query.bias")


def test_points_are_points() -> None:
    found, left = match([rename("a.b", "c")], ["axb.weight"])
    assert not found and left == ["axb.weight"]


def test_the_first_rule_that_covers_a_tensor_has_it() -> None:
    found, left = match([rename("a", "first"), rename("a", "second")], ["a.weight"])
    assert [each.theirs for each in found] == [("first.weight",)] and not left


def test_two_numbers_in_one_name() -> None:
    (found,), _ = match([rename("groups.*.blocks.*.q", "g.*.layers.*.query")], ["groups.2.blocks.7.q.weight"])
    assert found.theirs == ("g.2.layers.7.query.weight",)


@pytest.mark.parametrize("turned", [False, True])
def test_three_of_ours_are_one_of_theirs(turned: bool) -> None:
    rule = rename(("q", "k", "v"), "c_attn", turned=turned)
    own = {"q.weight": numbers(4, 6), "k.weight": -numbers(2, 6), "v.weight": 9 + numbers(2, 6), "q.bias": numbers(4)}
    own |= {"k.bias": numbers(2), "v.bias": numbers(2)}
    found, left = match([rule], own)
    assert len(found) == 2 and not left
    theirs = {}
    for each in found:
        theirs |= to_theirs(each, [own[name] for name in each.ours], None)
    assert theirs["c_attn.weight"].shape == ((6, 8) if turned else (8, 6)) and theirs["c_attn.bias"].shape == (8,)
    sizes = {name: tensor.shape for name, tensor in own.items()}
    for each in found:
        for name, tensor in to_ours(each, [theirs[each.theirs[0]]], sizes).items():
            assert torch.equal(tensor, own[name])


def test_two_of_theirs_are_one_of_ours() -> None:
    (found,), _ = match([rename("inner", ("gate", "up"))], ["inner.weight"])
    gate, up = numbers(3, 2), -numbers(3, 2)
    own = to_ours(found, [gate, up], {"inner.weight": torch.Size((6, 2))})["inner.weight"]
    assert torch.equal(own, torch.cat((gate, up)))
    back = to_theirs(found, [own], None)
    assert torch.equal(back["gate.weight"], gate) and torch.equal(back["up.weight"], up)


def test_another_shape_for_the_same_numbers() -> None:
    (found,), _ = match([rename("position", "weights", shape=lambda options, own: (2, *own.shape[1:]))], ["position"])
    own = to_ours(found, [numbers(1, 4, 3)], {"position": torch.Size((4, 3))})["position"]
    assert own.shape == (4, 3)
    assert to_theirs(found, [own[:2]], None)["weights"].shape == (2, 3)


def test_what_need_not_be_copied_is_a_view() -> None:
    whole = numbers(6, 8)
    (found,), _ = match([rename(("q", "k"), "both", turned=True)], ["q.weight", "k.weight"])
    parts = to_ours(found, [whole], {"q.weight": torch.Size((4, 6)), "k.weight": torch.Size((4, 6))})
    assert all(part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() for part in parts.values())


@pytest.mark.parametrize("given", [(3, 6), (6, 3), (5, 6)])
def test_shapes_that_disagree_are_named(given: tuple[int, int]) -> None:
    (found,), _ = match([rename("a", "there.b")], ["a.weight"])
    with pytest.raises(InvalidInput, match=r"there.b.weight: \(\d, \d\) in the file, \(4, 6\) by its configuration"):
        to_ours(found, [numbers(*given)], {"a.weight": torch.Size((4, 6))})
    (found,), _ = match([rename(("q", "k"), "both")], ["q.weight", "k.weight"])
    sizes = dict.fromkeys(("q.weight", "k.weight"), torch.Size((4, 6)))
    with pytest.raises(InvalidInput, match=r"both.weight: \(\d, \d\) in the file, \(8, 6\)"):
        to_ours(found, [numbers(*given)], sizes)
    (found,), _ = match([rename("a", "b", shape=lambda options, own: (1, *own.shape))], ["a"])
    with pytest.raises(InvalidInput, match=r"b: \(\d, \d\) in the file, \(4, 6\)"):
        to_ours(found, [numbers(*given)], {"a": torch.Size((4, 6))})


def test_of_several_parts_all_must_be_there() -> None:
    found, left = match([rename(("q", "k"), "both")], ["q.weight"])
    assert not found and left == ["q.weight"]
