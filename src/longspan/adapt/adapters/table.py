"""The table [adapter] of a recipe: train an adapter on a pretrained model, whose own weights stay as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.models import adapters
from longspan.models.base import Model
from longspan.train.extensions import Extension
from longspan.train.options import TrainOptions


class AdapterTable(Extension):
    """An adapter by its kind. Each key belongs to the kinds that its help names; others are refused."""

    name = "adapter"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        kind: str = option("lora", "lora, houlsby or prefix")
        rank: int | None = option(None, "lora: rank of the change (8)")
        alpha: float | None = option(None, "lora: the change is scaled by alpha / rank (16)")
        dropout: float | None = option(None, "lora: dropout before A, in training (0)")
        targets: tuple[str, ...] | None = option(None, "lora: some of q, k, v, out, feedforward (q and v)")
        inner: int | None = option(None, "houlsby: width of the bottleneck (64); prefix: of the network, 0: none (512)")
        init: float | None = option(None, "houlsby: deviation of the first weights (0: start exactly at the base)")
        norms: bool | None = option(None, "houlsby: train the norms of the blocks too (true)")
        tokens: int | None = option(None, "prefix: learned keys and values per layer (10)")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        given = {name: value for name, value in config.plain(options).items() if value is not None}
        self.adapter = adapters.build(given.pop("kind"), **given)

    def adapt_model(self, model: Model, table: Mapping[str, Any], options: TrainOptions) -> None:
        if "from" not in table:
            raise InvalidOption("an adapter is trained on a pretrained model: give [model] from")
        if table.get("trained", "all") != "all":
            raise InvalidOption("an adapter says itself what is trained; leave out [model] trained")
        if options.shard or options.unfreeze_every:
            raise InvalidOption("an adapter allows no shard and no unfreeze_every; leave them out")
        self.adapter.attach(model)
        self.adapter.freeze(model)


__all__ = ["AdapterTable"]
