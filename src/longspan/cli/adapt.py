"""`longspan adapt`: trained models in lighter forms. Each sub-command is one line here."""

from cyclopts import App

from longspan.cli import adapt_adapters, adapt_distill, adapt_quantize, adapt_search

app = App(
    name="adapt",
    help="Make a model lighter: quantize, distil, share weights, train an adapter, or search an architecture.",
    help_format="markdown",
)
app.command(adapt_quantize.quantize)
app.command(adapt_distill.distill)
app.command(adapt_distill.share)
app.command(adapt_adapters.lora)
app.command(adapt_adapters.houlsby)
app.command(adapt_adapters.prefix)
app.command(adapt_adapters.merge)
app.command(adapt_search.search)
