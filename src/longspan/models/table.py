"""Rows of a table: columns as tokens (FT-Transformer, Gorishniy et al. 2021), with any attention in each layer.

Apart from the tokens it is `Encoder` with pre-norm: the same blocks, and the same task heads, which read the token of
the whole row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.models.body import BodyOptions, build_stack, initialise
from longspan.models.headed import Headed, build_heads
from longspan.models.table_base import TableColumn, TableModel
from longspan.models.text import DENSE
from longspan.nn.dropout import Dropout
from longspan.nn.feedforward import GATED, PLAIN
from longspan.nn.heads import Head
from longspan.nn.inputs import BlockInputs
from longspan.nn.table_embedding import Categories, Numbers, TableEmbedding
from longspan.shapes import Hidden

ONE = (TableColumn(name="x"),)


class TableTransformer(Headed, TableModel):
    """Hidden states of a row and of its columns, and task heads on them.

    >>> columns = [{"name": "age"}, {"name": "colour", "kind": "category", "values": ["red", "blue"]}]
    >>> model = build("table_transformer", columns=columns, tasks=[{"task": "classify", "labels": 3}])
    >>> model.outputs(torch.tensor([[0.3], [float("nan")]]), torch.tensor([[1], [2]]))["classify"]
    """

    name = "table_transformer"
    paper = "Gorishniy et al. 2021"

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        """The defaults are the paper's, section 4.4 and its supplement."""

        width: int = option(192, "width of the hidden states", low=1)
        layers: int = option(3, "number of blocks", low=1)
        heads: int = option(8, "attention heads", low=1)
        hidden: int = option(256, "inner width of the feed-forward layer", low=1)
        activation: str = option("reglu", "of the feed-forward layer", choices=(*PLAIN, *GATED))
        norm_position: str = option("pre", "norm after each sub-layer, or before it", choices=("post", "pre"))
        dropout: float = option(0.0, "on embeddings and on the output of each sub-layer", low=0, high=0.999)
        hidden_dropout: float = option(0.1, "inside the feed-forward layer", low=0, high=0.999)
        attention_dropout: float = option(0.2, "on attention weights, if the mechanism has any", low=0, high=0.999)
        position: str = option("none", "columns have no order: their vectors tell them apart", choices=("none",))
        columns: tuple[TableColumn, ...] = option(ONE, "the columns that are read")
        target: TableColumn | None = option(None, "the column that is predicted, and the scale of its numbers")
        decimal: str = option(".", "the decimal mark of the file", choices=(".", ","))
        attention: tuple[AttentionConfig, ...] = option(DENSE, "attention of each layer, repeated from the bottom up")
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.columns, self.decimal = options.columns, options.decimal
        self.target = TableColumn(name="label") if options.target is None else options.target
        names = [column.name for column in options.columns]
        if len(set(names)) < len(names):
            raise InvalidOption(f"each column has a name of its own; they are {', '.join(names)}")
        sizes = [len(column.values or ()) for column in options.columns if column.kind == "category"]
        self.embedding = TableEmbedding(len(names) - len(sizes), sizes, options.width)
        self.drop = Dropout(options.dropout if options.embedding_dropout is None else options.embedding_dropout)
        sized = replace(options, max_length=options.max_length or self.embedding.tokens)
        self.stack = build_stack(sized, options.attention, stack_name="encoder", causal=False)
        self.heads = build_heads(options, self.stack.out_width, None)
        initialise(self, options)

    @property
    def table(self) -> Tensor:
        raise Unsupported("table_transformer reads rows of numbers: it has no token embedding")

    def forward(
        self, numbers: Numbers, categories: Categories, *, streams: Mapping[str, Tensor] | None = None
    ) -> Hidden:
        """The states: the row's first, then those of numbers, then those of categories."""
        states: Tensor = self.stack(self.drop(self.embedding(numbers, categories)), BlockInputs(streams=streams))
        return states

    def outputs(self, numbers: Numbers, categories: Categories) -> dict[str, Tensor]:
        return self.read_from(self.stack, lambda: self(numbers, categories))


__all__ = ["TableTransformer"]
