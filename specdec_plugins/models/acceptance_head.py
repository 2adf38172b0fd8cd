"""``acceptance_head``: the probability that the verifier accepts each drafted token.

The head reads the frozen drafter's last states. Its probabilities are conditional: a slot's token
is accepted, given that all before it are; their running product is the probability that a slot
survives. Its residual blocks are SpecDec++'s (Huang et al., COLM 2025, §3.2); by default it has
none, since a weighted sum of the states predicts as well.
"""

# No postponed annotations: fairseq reads the config fields' types at run time.

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import msgspec
import torch
import torch.nn.functional as F
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel, register_model
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from specdec_plugins.files.output import JsonObject
from specdec_plugins.host.checkpoints import REDUNDANT
from specdec_plugins.models.block_causal import option_of
from specdec_plugins.models.drafter import Drafter

#: Settings in older files; heads have both features.
FORMER = {"slot_feature", "confidence_feature"}
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z_]{1,40}\Z")]
Scale = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
#: Probabilities of drafted tokens are kept this far from 0 and 1.
DOUBT = 1e-6


@dataclass(frozen=True)
class HeadSettings:
    """The form of a head and the models and rule that it was trained for; saved with it."""

    #: Width of the drafter's states.
    channels: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    #: Residual blocks.
    layers: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    #: :func:`fingerprint` of the drafter.
    drafter: str
    #: Options that ask for the acceptance rule.
    rule: dict[Name, bool | int | float] = field(default_factory=dict)
    #: The temperature of the scores that the rule judges; 1 for the strict rule.
    rule_temperature: Scale = 1.0
    repetition_penalty: Scale = 1.0
    #: Calibration: logits are divided by this, then ``bias`` is added.
    temperature: Scale = 1.0
    bias: float = 0.0

    def to_file(self) -> JsonObject:
        """Return the settings and the rule's options in one mapping."""
        return {**{n: value for n, value in asdict(self).items() if n != "rule"}, **self.rule}

    @classmethod
    def from_file(cls, saved: JsonObject) -> "HeadSettings":
        """Return the settings of such a mapping, which may come from a stranger."""
        fields = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
        rule = {name: saved[name] for name in saved if name not in {*fields, *FORMER}}
        return msgspec.convert({**fields, "rule": rule}, cls)


def fingerprint(drafter: Drafter) -> str:
    """Return the SHA-256 of a drafter's weights in float16, as 64 hexadecimal digits.

    Exported or not, the same weights have the same fingerprint; take it before the drafter is
    converted to a type that is less precise than float16.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.state_dict().items()):
        if not REDUNDANT.search(name):
            values = tensor.half() if tensor.is_floating_point() else tensor
            header = f"{name} {list(tensor.shape)} "
            digest.update(header.encode())
            digest.update(values.numpy(force=True).tobytes())
    return digest.hexdigest()


class ResidualBlock(nn.Module):
    """``x + SiLU(Wx)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class AcceptanceHead(nn.Module):
    """Residual blocks and a linear layer."""

    def __init__(self, settings: HeadSettings) -> None:
        super().__init__()
        self.settings = settings
        channels = settings.channels
        self.slots = nn.Parameter(torch.zeros(settings.block_size, channels))
        self.confidence = nn.Linear(2, channels, bias=False)
        nn.init.zeros_(self.confidence.weight)
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(settings.layers))
        self.out = nn.Linear(channels, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def calibrate(self, temperature: float, bias: float) -> None:
        """Set the temperature and the bias of its probabilities."""
        self.settings = replace(self.settings, temperature=temperature, bias=bias)

    def logits(self, states: Tensor, confidences: Tensor) -> Tensor:
        """Return ``(…, slots)`` log-odds, before temperature and bias.

        Args:
            states: ``(…, slots, channels)`` the drafter's last states.
            confidences: ``(…, slots)`` the drafter's probability of each token that it chose.
        """
        x = states.to(self.out.weight.dtype) + self.slots[: states.size(-2)]
        p = confidences.clamp(DOUBT, 1 - DOUBT)
        features = torch.stack([p, 1 - p], dim=-1).log()  # (…, slots, 2)
        x = x + self.confidence(features.to(x.dtype))
        for block in self.blocks:
            x = block(x)
        return self.out(x)[..., 0]

    def forward(self, states: Tensor, confidences: Tensor) -> Tensor:
        """Return ``(…, slots)`` float32 probabilities of acceptance if all before are accepted."""
        logits = self.logits(states, confidences).float() / self.settings.temperature
        return (logits + self.settings.bias).sigmoid()

    def get_extra_state(self) -> JsonObject:
        """Return the settings, for the state dict: torch's hook."""
        return self.settings.to_file()

    def set_extra_state(self, state: JsonObject) -> None:
        """Refuse the weights of a head for something else."""
        expected = self.settings.to_file()
        for name in {**expected, **state}:
            if name not in FORMER and state.get(name) != expected.get(name):
                raise ValueError(
                    f"this acceptance head was trained with {name} {state.get(name)}, not "
                    f"{expected.get(name)}; train one in another folder"
                )


@dataclass
class AcceptanceHeadConfig(FairseqDataclass):
    """Options of ``--arch acceptance_head``."""

    drafter: str = option_of("", "checkpoint of the drafter that the head is for")
    head_layers: int = option_of(0, "residual blocks of the head; 3 as in SpecDec++, but slower")


@register_model("acceptance_head", dataclass=AcceptanceHeadConfig)
class AcceptanceHeadModel(BaseFairseqModel):
    """A head in training, with its drafter, which is neither trained nor saved."""

    def __init__(self, head: AcceptanceHead, drafter: Drafter) -> None:
        super().__init__()
        self.head = head
        # In a tuple, so that it is no submodule.
        self._drafter = (drafter,)

    @classmethod
    def build_model(cls, cfg: AcceptanceHeadConfig, task: FairseqTask) -> "AcceptanceHeadModel":
        """Build from the config; the task loads the drafter and knows the rule."""
        if not cfg.drafter:
            raise ValueError("--arch acceptance_head needs the drafter: give it with --drafter")
        if getattr(task.cfg, "eval_bleu", False):
            raise ValueError("--eval-bleu: an acceptance head translates nothing; leave it out")
        drafter = task.load_drafter(cfg.drafter)
        settings = HeadSettings(
            channels=drafter.decoder.channels,
            layers=cfg.head_layers,
            block_size=drafter.slots(task.cfg.block_size),
            drafter=fingerprint(drafter),
            rule=task.rule.values,
            rule_temperature=task.limits.temperature if task.rule.takes_temperature else 1.0,
            repetition_penalty=task.limits.repetition_penalty,
        )
        return cls(AcceptanceHead(settings), drafter)

    @property
    def drafter(self) -> Drafter:
        return self._drafter[0]

    def attach_verifier(self, verifier: BaseFairseqModel) -> None:
        """Attach the drafter's verifier."""
        self.drafter.attach_verifier(verifier)

    def _apply(
        self, fn: Callable[[Tensor], Tensor], *args: object, **kwargs: object
    ) -> "AcceptanceHeadModel":
        # The drafter follows to every device and dtype, and its verifier with it.
        self.drafter._apply(fn)
        return super()._apply(fn, *args, **kwargs)

    def max_positions(self) -> tuple[int | None, int]:
        """Longest source and target, in tokens, that batches may hold."""
        return self.drafter.max_positions()

    def forward(self, states: Tensor, confidences: Tensor) -> Tensor:
        """See :meth:`AcceptanceHead.logits`."""
        return self.head.logits(states, confidences)
