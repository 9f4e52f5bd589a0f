"""`longspan demo`: the first minute with longspan, on one page."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from longspan import files
from longspan.cli.inputs import AsJson, check_writable, notices, print_json
from longspan.cli.measuring import progress


def demo(
    *,
    out: Annotated[Path, Parameter(help="the page to write")] = Path("longspan-demo.html"),
    json: AsJson = False,
) -> None:
    """See what longspan does in a minute: one page, made on this machine, that needs no data and no network.

    It shows what every mechanism reads, which well-known packages leak the future or padding and that ours do not, from
    which length efficient attention pays on this machine, and three little models that learn to copy while you watch.

    **Examples:**

        longspan demo
        longspan demo --out first-look.html
        longspan demo --json
    """
    check_writable(out)

    from longspan.demo.crossover import crossover
    from longspan.demo.leaks import leaks
    from longspan.demo.learning import learn
    from longspan.inspect.gallery import collect
    from longspan.measure.machine import describe
    from longspan.report.demo import crossover_sentence, demo_page, leak_sentence, learning_sentence
    from longspan.report.gallery_svg import gallery_svg

    with notices():
        with progress("1 of 4: what each mechanism reads", did="drawn") as tell:
            entries = collect(None, tell, dials=False)
        with progress("2 of 4: who leaks"):
            faults = leaks()
        with progress("3 of 4: what pays on this machine") as tell:
            times = crossover(tell)
        with progress("4 of 4: three little models learn to copy", did="steps done") as tell:
            learned = learn(tell)
    files.write_text(out, demo_page(gallery_svg(entries), faults, times, learned, _machine(describe())))
    if json:
        print_json(
            {
                "page": str(out),
                "leaks": [vars(fault) for fault in faults],
                "seconds": {"lengths": times.lengths, **times.seconds},
                "copied": {each.name: dict(zip(each.steps, each.accuracy)) for each in learned},
            }
        )
        return
    for sentence in (leak_sentence(faults), crossover_sentence(times), learning_sentence(learned)):
        print(sentence)
    print(f"wrote {out}: open it in a browser")


def _machine(facts: dict[str, Any]) -> str:
    return f"{facts['processor']}, {facts['torch_threads']} threads, torch {facts['torch']}."
