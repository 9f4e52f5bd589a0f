"""The losses of distillation: sums over rows, as all losses of training."""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div

from longspan.errors import InvalidInput


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T² KL(teacher_T ‖ student_T), summed over rows (Hinton et al. 2015); T² keeps the size of gradients.

    Outputs with one dimension are predicted numbers: the sum of squared differences.
    """
    _check(student, teacher)
    if student.dim() == 1:
        return ((student - teacher) ** 2).sum()
    mine, theirs = ((_wide(logits) / temperature).log_softmax(-1) for logits in (student, teacher))
    return temperature**2 * kl_div(mine, theirs, reduction="sum", log_target=True)


def hard_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The cross-entropy of the class that the teacher finds likeliest, summed over rows."""
    _check(student, teacher)
    if student.dim() == 1:
        return ((student - teacher) ** 2).sum()
    return cross_entropy(_wide(student), teacher.argmax(-1), reduction="sum")


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cosine of hidden states (rows, width), summed over rows: 0 if they have the same direction."""
    _check(student, teacher)
    return (1 - cosine_similarity(_wide(student), _wide(teacher), dim=-1)).sum()


def state_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference of hidden states (rows, width), summed over rows."""
    _check(student, teacher)
    return ((_wide(student) - _wide(teacher)) ** 2).mean(-1).sum()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _check(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        raise InvalidInput(
            f"the teacher's outputs are {tuple(teacher.shape)} and the student's {tuple(student.shape)}; they need the "
            "same classes or vocabulary, and for hidden states the same width"
        )


__all__ = ["cosine_loss", "hard_loss", "soft_loss", "state_loss"]
