"""ETC (Ainslie et al. 2020): an encoder of a long input and a short global input.

Both go through the blocks as one sequence, the global input first, with the attention `etc`. The model adds what the
paper does not share between the inputs: output projections and attention norms. Token embeddings and feed-forward
layers are shared. There are no absolute positions.

`sharing` says what the two inputs share in attention: "none" is the paper's 2 projections of queries, 4 of keys and
values and 2 of outputs; "projections" the released configuration, one of queries, keys and values and 2 of outputs;
"all" one of everything, which is BERT if radius, labels and masks hide nothing.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longspan.attention.config import AttentionConfig
from longspan.attention.devices import host_may_read
from longspan.config import option
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import Ids, Mask, SentenceHeads, SentenceStates
from longspan.models.body import BodyOptions, build_stack, embedding, initialise
from longspan.models.headed import Headed, build_heads
from longspan.nn.block import Block
from longspan.nn.dropout import Dropout
from longspan.nn.heads import Head, Masked, PerText
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.norm import build_norm
from longspan.nn.stack import Stack
from longspan.shapes import Hidden

LONG = ("q", "k", "v", "g2l_k", "g2l_v")  # unshared projections of long tokens; the others are of global tokens


class PerInput(nn.Module):
    """One module for the first `count` rows, the global input, and another for the long input."""

    def __init__(self, count: int, of_global: nn.Module, of_long: nn.Module) -> None:
        super().__init__()
        self.count, self.of_global, self.of_long = count, of_global, of_long

    def forward(self, x: Hidden) -> Hidden:
        return torch.cat([self.of_global(x[:, : self.count]), self.of_long(x[:, self.count :])], dim=1)


class OfOneInput(Linear):
    """A projection of the rows of one input only; the other rows are 0, and not computed."""

    def __init__(self, like: nn.Linear, count: int, long: bool) -> None:
        super().__init__(like.in_features, like.out_features, bias=like.bias is not None)
        self.load_state_dict(like.state_dict())
        self.count, self.long = count, long

    def forward(self, x: Tensor) -> Tensor:
        if self.long:
            return pad(super().forward(x[:, self.count :]), (0, 0, self.count, 0))
        return pad(super().forward(x[:, : self.count]), (0, 0, 0, x.shape[1] - self.count))


class EtcModel(Headed, SentenceHeads):
    """Hidden states of the long and of the global input; and task heads.

    For tasks the long input is a text, and the global one has a token for the whole text, which reads all of it, and
    one for each sentence. Sentences that have no room share the last global token.

    >>> long, short = model(ids, global_ids, segments=sentence_of_each_token, global_segments=sentences)
    """

    name = "etc_model"
    paper = "Ainslie et al. 2020"

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        """The defaults are the paper's base model."""

        width: int = option(768, "width of the hidden states", low=1)
        layers: int = option(12, "number of blocks", low=1)
        heads: int = option(12, "attention heads", low=1)
        hidden: int = option(3072, "inner width of the feed-forward layer", low=1)
        activation: str = option("gelu", "of the feed-forward layer", choices=("gelu", "gelu_tanh", "relu", "silu"))
        eps: float = option(1e-12, "added to the variance in norms", low=0)
        position: str = option("none", "positions are encoded by labels alone", choices=("none",))
        scale: bool = option(False, "whether embeddings are multiplied by the root of the width")
        init: str = option("normal", "xavier: Glorot; normal: N(0, init_std)", choices=("xavier", "normal"))
        vocabulary: int = option(30522, "number of token ids, of both inputs", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        types: int = option(16, "number of token types (BERT's segment ids)", low=1)
        embedding_norm: bool = option(True, "whether embeddings are normalised, as in BERT")
        global_tokens: int = option(256, "room for the global input", low=1)
        radius: int = option(84, "neighbours that a long token reads on each side", low=1)
        labels: int = option(12, "distance from which relative positions share a label; 0: no labels", low=0)
        label_vocabulary: int = option(32, "rows of the label tables, at least 2 · labels + 3", low=1)
        hard: str = option(
            "none",
            "g2l: a global token reads only the long tokens of its segment; both: and these only it",
            choices=("none", "g2l", "both"),
        )
        sharing: str = option("none", "of attention between the inputs", choices=("none", "projections", "all"))
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")
        global_id: int = option(0, "the token id of global tokens, such as that of [CLS]", low=0)
        sentence_ends: tuple[int, ...] | None = option(
            None, "ids of tokens that end a sentence, for texts without given sentences", low=0
        )
        sentence_closers: tuple[int, ...] | None = option(
            None, "ids that still belong to a sentence after its end, such as closing quotes and [SEP]", low=0
        )
        segment_length: int = option(64, "tokens that share a global token, if there are no sentence_ends", low=1)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.reversible:
            raise Unsupported("etc_model has two norms around its attention; leave out reversible")
        attention = AttentionConfig(
            "etc",
            global_tokens=options.global_tokens,
            radius=options.radius,
            labels=options.labels,
            vocabulary=options.label_vocabulary if options.labels else None,
            hard=options.hard,
            shared=options.sharing != "none",
        )
        plain = replace(options, dropout=0.0, embedding_norm=False)  # they follow the addition of types
        self.embedding = embedding(plain, options.vocabulary, options.padding)
        self.types = nn.Embedding(options.types, options.width)
        norm = options.norm if options.embedding_norm else "none"
        self.norm = build_norm(norm, options.width, options.eps)
        self.dropout = Dropout(options.dropout)
        self.stack = build_stack(options, (attention,), stack_name="encoder", causal=False)
        for block in self.blocks() if options.sharing != "all" else ():
            self._unshare(block)
        self.heads = build_heads(options, options.width, options.vocabulary)
        initialise(self, options)
        if options.init == "normal":
            nn.init.normal_(self.types.weight, std=options.init_std)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    @property
    def segment_kinds(self) -> int:
        return int(self.options.types)

    def blocks(self) -> list[Block]:
        assert isinstance(self.stack, Stack)
        return [block for block in self.stack.blocks if isinstance(block, Block)]

    def _unshare(self, block: Block) -> None:
        options, mixer, around = self.options, block.mixer, block.around_mixer
        outs = [Linear(mixer.out.in_features, options.width, bias=options.bias) for _ in range(2)]  # type: ignore[arg-type]
        for out in outs:
            out.load_state_dict(mixer.out.state_dict())  # both inputs start with the same weights
        mixer.out = PerInput(options.global_tokens, *outs)
        norms = (build_norm(options.norm, options.width, options.eps) for _ in range(2))
        around.norm = PerInput(options.global_tokens, *norms)
        for projections in (mixer.project, mixer.extra) if options.sharing == "none" else ():
            for name, linear in list(projections.items()):
                assert isinstance(linear, nn.Linear)
                projections[name] = OfOneInput(linear, options.global_tokens, name in LONG)

    def forward(
        self,
        ids: Ids,
        global_ids: Ids,
        *,
        key_mask: Mask | None = None,
        global_mask: Mask | None = None,
        types: Ids | None = None,
        global_types: Ids | None = None,
        segments: Ids | None = None,
        global_segments: Ids | None = None,
        examples: Ids | None = None,
        global_examples: Ids | None = None,
    ) -> tuple[Hidden, Hidden]:
        """The states of the long input and of the global one, which may be shorter than `global_tokens`.

        `segments` number the sentences of long tokens, `global_segments` those that global tokens represent (-1: none).
        `examples` and `global_examples` number packed examples, which then do not read each other.
        """
        count, room = global_ids.shape[1], self.options.global_tokens
        if count > room or not ids.shape[1]:
            what = f"a global input of at most {room} tokens" if count > room else "a long input"
            raise InvalidInput(f"etc_model needs {what}, and got {count} global and {ids.shape[1]} long tokens")
        streams = {}
        for name, of_global, of_long in (
            ("segment", global_segments, segments),
            ("example", global_examples, examples),
        ):
            if (of_global is None) != (of_long is None):
                raise InvalidInput(f"give {name}s and global_{name}s, or neither: they number tokens of both inputs")
            if of_global is not None and of_long is not None:
                streams[name] = self._joined(of_global, of_long, f"{name}s", global_ids, ids, -1)
        mask = None
        if key_mask is not None or global_mask is not None or count < room:
            key_mask = torch.ones_like(ids, dtype=torch.bool) if key_mask is None else key_mask
            global_mask = torch.ones_like(global_ids, dtype=torch.bool) if global_mask is None else global_mask
            mask = self._joined(global_mask, key_mask, "masks", global_ids, ids, False)
        types = torch.zeros_like(ids) if types is None else types
        global_types = torch.zeros_like(global_ids) if global_types is None else global_types
        kinds = self._joined(global_types, types, "types", global_ids, ids, 0)
        if host_may_read(kinds) and not bool(((kinds >= 0) & (kinds < self.options.types)).all()):
            raise InvalidInput(
                f"expected types in 0..{self.options.types - 1}, got {int(kinds.min())}..{int(kinds.max())}"
            )
        x = self.embedding(self._joined(global_ids, ids, "ids", global_ids, ids, 0)) + self.types(kinds)
        x = self.stack(self.dropout(self.norm(x)), BlockInputs(key_mask=mask, streams=streams))
        return x[:, room:], x[:, :count]

    def read_sentences(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None, sentences: Ids | None = None
    ) -> SentenceStates:
        sentences = self._sentences(ids) if sentences is None else sentences
        if key_mask is not None:
            sentences = sentences.masked_fill(~key_mask, -1)
        sentences = sentences.clamp_max(self.options.global_tokens - 2)
        count = max(1, int(sentences.max()) + 1)
        numbers = torch.arange(-1, count, device=ids.device).expand(ids.shape[0], -1)  # -1: the whole text
        present = numbers <= sentences.amax(1, keepdim=True)
        tokens, short = self(
            ids,
            torch.full_like(numbers, self.options.global_id),
            key_mask=key_mask,
            global_mask=present,
            types=segments,
            segments=sentences,
            global_segments=numbers,
        )
        return SentenceStates(tokens, short[:, 0], short[:, 1:], key_mask, present[:, 1:])

    def _sentences(self, ids: Ids) -> Ids:
        """The sentence of each token: by the tokens that end sentences, or segments of equal length."""
        ends = self.options.sentence_ends
        if ends is None:
            return (torch.arange(ids.shape[1], device=ids.device) // self.options.segment_length).expand_as(ids)
        ended = torch.isin(ids, torch.tensor(ends, device=ids.device))
        closers = torch.tensor([*ends, *(self.options.sentence_closers or ())], device=ids.device)
        # A run of ends and closers ends one sentence: the next one begins with the first token after the run.
        closing = torch.isin(ids, closers)
        index = torch.arange(ids.shape[1], device=ids.device)
        last_plain = torch.where(closing, -1, index).cummax(1).values  # the last token before a run
        last_end = torch.where(ended, index, -1).cummax(1).values
        begins = ~closing
        begins[:, 1:] &= last_end[:, :-1] > last_plain[:, :-1]
        begins[:, 0] = False
        return begins.long().cumsum(1)

    def read_heads(self, states: SentenceStates, chosen: Mask | None = None) -> dict[str, Tensor]:
        places = states.tokens if chosen is None else states.tokens[chosen]
        short = torch.cat([states.whole[:, None], states.sentences], 1)
        mask = pad(states.sentence_mask, (1, 0), value=True)
        outputs: dict[str, Tensor] = {}
        for task, head in self.heads.items():
            if isinstance(head, Masked):
                outputs[task] = head(places, self.table)
            else:
                outputs[task] = head(short, mask) if isinstance(head, PerText) else head(states.tokens, states.key_mask)
        return outputs

    def _joined(
        self, of_global: Tensor, of_long: Tensor, what: str, global_ids: Tensor, ids: Tensor, filling: int
    ) -> Tensor:
        """The global part, padded to `global_tokens`, followed by the long part."""
        for tensor, like, name in ((of_global, global_ids, f"global {what}"), (of_long, ids, what)):
            if tensor.shape != like.shape or len(ids) != len(global_ids):
                raise InvalidInput(f"{name} must be {(len(ids), like.shape[1])}, not {tuple(tensor.shape)}")
        room = self.options.global_tokens - global_ids.shape[1]
        return torch.cat([pad(of_global, (0, room), value=filling), of_long], dim=1)


__all__ = ["EtcModel", "OfOneInput", "PerInput"]
