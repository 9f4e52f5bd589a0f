"""What was done to a model since it last generated is seen: nothing of its weights is kept."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longspan.decode import Beam, beam_search, generate, score
from longspan.models import build
from longspan.models.base import CausalModel
from longspan.nn.multihead import MultiHead

VOCABULARY, PROMPTS = 40, [[3, 9, 4, 7], [5, 6]]
KINDS = {
    "learned": {"position": "learned"},
    "rotary": {"position": "rotary", "kv_heads": 2, "bias": False, "norm": "rms", "activation": "swiglu"},
}


def make(kind: str) -> CausalModel:
    torch.manual_seed(0)
    sizes = {"vocabulary": VOCABULARY, "width": 256, "heads": 4, "hidden": 512, "layers": 2, "max_length": 64}
    return build("decoder", **sizes, **KINDS[kind], norm_position="pre", dropout=0.0, tied=False)


def by_whole_passes(model: CausalModel, prompt: list[int], new: int) -> tuple[list[int], list[float]]:
    """Greedy, without decoding state: the parallel pass over the text so far, again and again."""
    text, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(new):
            best, token = model(torch.tensor([text]))[0, -1].log_softmax(0).max(0)
            text.append(int(token))
            logprobs.append(float(best))
    return text[len(prompt) :], logprobs


def check(model: CausalModel) -> Tensor:
    """The log-probabilities of what it generates, which must be those of whole passes; of beams as well."""
    model.eval()
    found = generate(model, PROMPTS, max_new=8)
    expected = [by_whole_passes(model, prompt, 8) for prompt in PROMPTS]
    assert found.tokens == [tokens for tokens, _ in expected]
    logprobs = torch.tensor([expected for _, expected in expected])
    torch.testing.assert_close(torch.tensor(found.logprobs), logprobs, rtol=0, atol=1e-4)
    for prompt, (best, *_) in zip(PROMPTS, beam_search(model, PROMPTS, options=Beam(beams=3, max_new=6))):
        again = torch.cat(score(model, [prompt], [best.tokens])).float()
        torch.testing.assert_close(torch.tensor(best.logprobs), again, rtol=0, atol=1e-4)
    return logprobs


def train(model: CausalModel) -> None:
    model.train()
    ids = torch.randint(0, VOCABULARY, (4, 12))
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()


def load(model: CausalModel) -> None:
    torch.manual_seed(1)
    model.load_state_dict({name: 0.1 * torch.randn_like(value) for name, value in model.state_dict().items()})


class Adapted(nn.Module):
    """A linear layer and a low-rank change of it, as adapters put one in its place."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
        self.in_features, self.out_features = base.in_features, base.out_features

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def mixers(model: CausalModel) -> list[MultiHead]:
    return [module for module in model.modules() if isinstance(module, MultiHead)]


def adapt(model: CausalModel) -> None:
    for mixer in mixers(model):
        mixer.project["k"] = Adapted(mixer.project["k"])


def hook(model: CausalModel) -> None:
    for mixer in mixers(model):
        mixer.project["v"].register_forward_hook(lambda module, given, out: -3 * out)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrise(model: CausalModel) -> None:
    for mixer in mixers(model):
        parametrize.register_parametrization(mixer.project["q"], "weight", Doubled())
        parametrize.register_parametrization(mixer.out, "weight", Doubled())


def widen(model: CausalModel) -> None:
    model.double()
    train(model)


CHANGES = {
    "trained": train,
    "loaded": load,
    "adapted": adapt,
    "hooked": hook,
    "parametrised": parametrise,
    "widened": widen,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen_by_the_next_generation(kind: str, change: Callable[[CausalModel], None]):
    model = make(kind)
    before = check(model)
    change(model)
    assert (check(model) - before).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_generating_leaves_the_model_as_it_was(kind: str):
    model, other = make(kind), make(kind)
    generate(model, PROMPTS, max_new=4)
    for each in (model, other):
        torch.manual_seed(1)
        train(each)
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters()):
        assert torch.equal(ours, theirs) and ours.is_leaf and not ours.is_inference(), name
