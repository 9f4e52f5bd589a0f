"""Named buffers: one piece of memory per name, reused by calls of any shape."""

import torch

from longspan.attention.buffers import Buffers


def test_a_name_keeps_its_memory_for_equal_and_smaller_shapes():
    buffers = Buffers()
    first = buffers("a", (4, 6), torch.float64)
    assert first.shape == (4, 6) and first.dtype == torch.float64 and first.is_contiguous()
    for shape in ((4, 6), (6, 4), (2, 3, 4), (5,)):
        again = buffers("a", shape, torch.float64)
        assert again.shape == shape and again.is_contiguous() and again.data_ptr() == first.data_ptr()
    assert buffers("b", (4, 6), torch.float64).data_ptr() != first.data_ptr()


def test_larger_shapes_and_other_dtypes_get_new_memory():
    buffers = Buffers()
    first = buffers("a", (4,), torch.float32).fill_(1.0)
    larger = buffers("a", (8,), torch.float32)
    assert larger.shape == (8,) and larger.data_ptr() != first.data_ptr()
    assert buffers("a", (8,), torch.int16).dtype == torch.int16
    assert torch.equal(first, torch.ones(4))  # earlier results outlive their buffer


def test_cleared_buffers_are_allocated_again_on_the_given_device():
    buffers = Buffers()
    buffers("a", (3,), torch.float32)
    buffers.clear()
    assert buffers("a", (3,), torch.float32, torch.device("meta")).is_meta
