"""`longspan probe`: what a trained model prefers, what it does with hostile text and prompts, and what it cannot do."""

from cyclopts import App

from longspan.cli.probe_bias import bias
from longspan.cli.probe_injection import detector, injection
from longspan.cli.probe_limits import limits
from longspan.cli.probe_prompts import prompts

app = App(name="probe", help="Probe a trained model before you use it. Figures come with intervals and controls.")
app.command(bias)
app.command(injection)
app.command(detector)
app.command(prompts)
app.command(limits)
