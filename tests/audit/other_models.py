"""Small models and layers of other people, with random weights; targets for the audit.

`transformers` takes seconds to import, so each factory imports what it needs.
"""

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH = 97, 32


def big_bird() -> nn.Module:
    """Block-sparse by default, and with it a decoder that reads the future."""
    from transformers import BigBirdConfig, BigBirdForCausalLM

    torch.manual_seed(0)
    return BigBirdForCausalLM(
        BigBirdConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=128,
            attention_type="block_sparse",
            block_size=4,
            is_decoder=True,
        )
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=1024, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
        )
    )


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=128,
        )
    )


def xlnet() -> nn.Module:
    from transformers import XLNetConfig, XLNetLMHeadModel

    torch.manual_seed(0)
    return XLNetLMHeadModel(XLNetConfig(vocab_size=VOCABULARY, d_model=WIDTH, n_layer=2, n_head=2, d_inner=64))


def x_decoder() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    return TransformerWrapper(
        num_tokens=VOCABULARY, max_seq_len=128, attn_layers=Decoder(dim=WIDTH, depth=2, heads=2, attn_dim_head=16)
    )


class Layer(nn.Module):
    """A causal attention layer as people write them, in one place right or wrong."""

    def __init__(self, width: int = WIDTH, *, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project, self.causal = nn.Linear(width, 3 * width), causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        q, k, v = self.project(x).chunk(3, dim=-1)
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        keep = keep.tril() if self.causal else keep
        if mask is not None:
            keep = keep & mask[:, None, :]
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, torch.finfo(q.dtype).min)
        return scores.softmax(dim=-1) @ v, None


class DropMaskLayer(Layer):
    """The same with the mask of `nn.MultiheadAttention`, where True drops the key."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, None if key_padding_mask is None else ~key_padding_mask)[0]


class Mixer(nn.Module):
    """A running mean: linear, causal, and with a state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.extend(x, self.start(x.shape[0]))
        return out

    def start(self, batch: int) -> tuple[Tensor, int]:
        return torch.zeros(batch, 1, WIDTH), 0

    def extend(self, x: Tensor, state: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, int]]:
        total, count = state
        sums = total + self.project(x).cumsum(dim=1)
        seen = torch.arange(count + 1, count + x.shape[1] + 1)[:, None]
        return sums / seen, (sums[:, -1:], count + x.shape[1])


class Classifier(nn.Module):
    """One output for a whole sequence: nothing to say of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x.mean(dim=1))


class NeedsArguments(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


layer = Layer()
number = 3


def makes_a_number() -> int:
    return 3
