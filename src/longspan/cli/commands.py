"""The table of commands. Commands import torch only when they run, so that `--help` is instant."""

from cyclopts import App, Parameter

from longspan import __version__
from longspan.cli import (
    advise,
    arena,
    attention,
    audit,
    chat,
    compare,
    convert,
    data,
    embed,
    export,
    fill,
    gallery,
    generate,
    inspect,
    predict,
    profile,
    recipes,
    summarize,
    tokenize,
    training,
    translate,
    words,
)

app = App(
    name="longspan",
    help="Every Transformer attention, classic and efficient: pick one, prove it, run it.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(show_default=False),
    suppress_keyboard_interrupt=False,
)
app.command(attention.list_names, name="list")
app.command(attention.show)
app.command(gallery.gallery)
app.command(data.app, name="data")
app.command(tokenize.app, name="tokenize")
app.command(advise.advise)
app.command(audit.audit)
app.command(arena.arena)
app.command(profile.profile)
app.command(generate.generate)
app.command(chat.chat)
app.command(fill.fill)
app.command(inspect.app, name="inspect")
app.command(embed.embed)
app.command(predict.predict)
app.command(convert.convert)
app.command(export.export)
app.command(summarize.summarize)
app.command(translate.translate)
app.command(words.app, name="words")
app.command(training.train)
app.command(recipes.recipe)
app.command(training.resume)
app.command(training.evaluate)
app.command(compare.compare)
