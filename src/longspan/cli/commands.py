"""The table of commands. Commands import torch only when they run, so that `--help` is instant."""

from cyclopts import App, Parameter

from longspan import __version__
from longspan.cli import (
    adapt,
    advise,
    arena,
    attention,
    audit,
    card,
    chat,
    compare,
    completion,
    convert,
    data,
    demo,
    embed,
    energy,
    export,
    fill,
    gallery,
    generate,
    heal,
    inspect,
    predict,
    probe,
    profile,
    recipes,
    summarize,
    swap,
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
app.command(demo.demo)
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
app.command(probe.app, name="probe")
app.command(convert.convert)
app.command(export.export)
app.command(swap.swap)
app.command(heal.heal)
app.command(adapt.app, name="adapt")
app.command(summarize.summarize)
app.command(translate.translate)
app.command(words.app, name="words")
app.command(training.train)
app.command(recipes.recipe)
app.command(training.resume)
app.command(training.evaluate)
app.command(compare.compare)
app.command(energy.energy)
app.command(card.card)
app.command(completion.completion)
