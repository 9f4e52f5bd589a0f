"""Parameters, operations and memory of a model, by part, without running it.

No weight is allocated: `blank` builds a model on torch's meta device. Mechanisms declare their own cost; everything
around them is counted here. Counts are for one sequence:

- operations: multiplications and additions of the matrix products, forward, as `torch.utils.flop_counter` counts them;
  a backward pass takes about twice as many;
- memory: float32 numbers that the forward pass keeps for the backward pass, without dropout masks, and the output;
  neither weights nor gradients nor the optimiser's state.

`tally` adds up, and counts the layers that all models use. The other files register how each family of models is
counted. If the work of a model depends on its input, the most that it can do is counted, and a note says so.
"""

from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.models.cost import counted_pass as counted_pass  # registers
from longspan.models.cost import memory as memory
from longspan.models.cost import recurrent as recurrent
from longspan.models.cost import transformers as transformers
from longspan.models.cost.tally import BYTES, Cost, ModelCost, Tally, read
from longspan.models.cost.weights import blank, count


def longest(model: Model) -> int | None:
    """The longest text that the model can read; None: any."""
    for name in ("source_length", "max_source", "max_length"):
        limit = getattr(model.options, name, None)
        if limit is not None:
            return int(limit)
    return None


def cost(model: Model, length: int) -> ModelCost:
    """The operations and the memory of one pass over a sequence of `length` tokens."""
    if length < 1:
        raise InvalidInput(f"a length is at least 1, not {length}")
    most = longest(model)
    if most is not None and length > most:
        raise InvalidInput(f"this {model.name} holds at most {most} tokens, not {length}")
    tally = Tally()
    read(model, length, tally)
    return ModelCost(length, tally.parts, tuple(tally.notes))


__all__ = ["BYTES", "Cost", "ModelCost", "blank", "cost", "count", "longest"]
