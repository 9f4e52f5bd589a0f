"""Pairs of tokens that were last seen beyond a window, by hand."""

import torch

from longspan.adapt.measures.copies import copied_from_beyond


def test_only_pairs_last_seen_beyond_the_window_count() -> None:
    # The pair (1, 2) ends at 1, 5 and 7: first never seen, then 4 tokens ago, then 2.
    rows = torch.tensor([[1, 2, 3, 4, 1, 2, 1, 2]])
    assert copied_from_beyond(rows, 3).nonzero()[:, 1].add(1).tolist() == [5]
    assert copied_from_beyond(rows, 4).any().item() is False
    # (2, 1) is seen once; a window of one token leaves both returns of (1, 2)
    assert copied_from_beyond(rows, 1).nonzero()[:, 1].add(1).tolist() == [5, 7]


def test_texts_do_not_see_each_other() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [5, 1, 2, 5]])
    assert copied_from_beyond(rows, 1).shape == (2, 3) and not copied_from_beyond(rows, 1).any()
