"""The settings of a run: what each means, which go together, and which of them all peers must share.

Owns the defaults and their reasons. Must not know tensors or peers.
"""

import math
from collections.abc import Iterable
from typing import Any, Literal, TypedDict

from msgspec import Struct, structs

from pccl import Codec, UsageError

SYNC_EVERY = 100
"""Steps of a round: what INTELLECT-1 trained with over the internet. 20 to 30 for quality or for short runs."""

CONTRACTIONS = [tenth / 10 for tenth in range(1, 11)]
"""By how much an inner phase may shrink a direction, for the test of stability; 1 is all of it."""

ALIKE = 4
"""Peers that train alike in that test, if no more are demanded: more of them make eager updates less stable, up to the
delayed ones. So many have the larger of the two default rates."""

NOTICE_S = 25.0
"""From SIGTERM to the end: clouds give 30 s or more before they take a spot machine away, and saving needs some."""

BUCKET_BYTES = 25 << 20
"""Of gradients: as in torch's own data parallelism. Long enough for the rate of a link, short enough to overlap."""

Overlap = int | Literal["auto", "round"]


class Options(TypedDict, total=False):
    """The keyword arguments of `DiLoCo`; `Settings` says what they mean."""

    sync_every: int
    outer_lr: float | None
    outer_momentum: float | None
    quantize: str | None
    feedback: bool | None
    weigh: str
    min_peers: int
    overlap: Overlap | None
    mix: float | None
    eager: bool
    fragments: int
    buffers: str
    clip: float | None
    pace: str
    join: str
    warmup_steps: int
    notice_s: float
    patience_s: float | None
    accumulate: int


class ParallelOptions(TypedDict, total=False):
    """The keyword arguments of `DataParallel`."""

    quantize: str | None
    feedback: bool | None
    weigh: str
    min_peers: int
    buffers: str
    clip: float | None
    notice_s: float
    bucket_bytes: int
    accumulate: int
    global_batch: int | None


class Settings(Struct, frozen=True, kw_only=True):
    """How a run trains. All but the last seven must be equal on all peers."""

    sync_every: int = SYNC_EVERY
    """Steps between two rounds, called H."""
    outer_lr: float | None = None
    """η; None for the default of the mode."""
    outer_momentum: float | None = None
    """μ, of Nesterov's kind; None for the default of the mode."""
    quantize: str | None = None
    """The codec of deltas: "int8", "int4", "e3m0"; None: they travel as float32."""
    feedback: bool | None = None
    """What coding loses is added to the next round. None: with 4-bit codes only, where it matters."""
    weigh: str = "tokens"
    """A contribution counts as much as the "tokens" in it, its "steps", or "equal" to any other."""
    overlap: Overlap | None = None
    """None: train on when the result is there. A number: it is merged that many steps after the launch. "auto": as few
    as hide the reduction. "round": at the end of the next round."""
    mix: float = 0.0
    """What the model keeps of itself when the outer parameters are merged into it."""
    eager: bool = False
    """With overlap="round": the own part of a delta counts at once."""
    fragments: int = 1
    """Parts of the model that are reduced one after the other, spread over the round."""
    buffers: str = "mean"
    """Buffers of the model: "mean" of all peers (integers: the largest), or "local"."""
    clip: float | None = None
    """A delta longer than this many times the median of the last round is shortened to that."""
    bucket_bytes: int = 0
    """Of `DataParallel`: gradients are reduced as soon as so many of them are there; 0 for deltas of rounds."""
    global_batch: int | None = None
    """Of `DataParallel`: samples of a step, divided among the peers that are here, however many they are."""
    min_peers: int = 1
    """Rounds begin, and go on, only with so many peers."""
    pace: str = "steps"
    """"steps": all make `sync_every` steps. "speed": slower peers make fewer, so that all are ready together."""
    join: str = "holder"
    """A newcomer's optimizer has the state of another peer ("holder"), or begins "fresh"."""
    warmup_steps: int = 0
    """With join="fresh": so many steps in which the learning rate rises to its value."""
    notice_s: float = NOTICE_S
    """After SIGTERM the round is finished if it ends within this time."""
    patience_s: float | None = None
    """When others have waited for this peer so long, it contributes what it has at the end of its next step. It learns
    of them within two seconds. None: it makes all its steps."""
    accumulate: int = 1
    """Backward passes of a step, for each of which `run.batches` leases a batch. `DataParallel` must know it. `DiLoCo`
    learns it, so that without it the first round is shorter."""

    @classmethod
    def of(cls, name: str, options: Options) -> "Settings":
        """Those of a run that makes rounds, with the defaults of the mode filled in. Raises `UsageError`."""
        return cls._of(name, dict(options), Options.__annotations__)

    @classmethod
    def of_steps(cls, name: str, options: ParallelOptions) -> "Settings":
        """Those of a run whose rounds are single steps. Raises `UsageError`."""
        settings = cls._of(name, dict(options), ParallelOptions.__annotations__)
        return structs.replace(settings, sync_every=1, bucket_bytes=settings.bucket_bytes or BUCKET_BYTES)

    @classmethod
    def _of(cls, name: str, options: dict[str, Any], known_names: Iterable[str]) -> "Settings":
        unknown = [key for key in options if key not in known_names]
        if unknown:
            known = ", ".join(known_names)
            raise UsageError(f"{name}: {unknown[0]} must be one of its settings ({known}); check the spelling")
        given: dict[str, Any] = {key: value for key, value in options.items() if key != "mix" or value is not None}
        settings = cls(**given)
        for wrong in settings._wrong():
            raise UsageError(f"{name}: {wrong}")
        if "mix" not in given and settings.fragments > 1 and settings.overlap:
            settings = structs.replace(settings, mix=0.5)
        return structs.replace(settings, overlap=settings.overlap or None)

    @property
    def mode(self) -> str:
        """By what rates are chosen."""
        if self.overlap == "round":
            return "eager" if self.eager else "delayed"
        return "streaming" if self.fragments > 1 else "plain"

    @property
    def with_feedback(self) -> bool:
        """Whether rounding errors are carried on."""
        return self.quantize in ("int4", "e3m0") if self.feedback is None else self.feedback

    def rates(self, peers: int) -> tuple[float, float]:
        """η and μ of a round with so many contributors. DiLoCo's own (0.7, 0.9) are unstable with a round of delay in
        every direction that the inner phase contracts by more than 36 %, so each mode has its own."""
        rate, momentum = {
            "plain": (0.7, 0.9),
            "delayed": (0.7, 0.0),
            "eager": (0.4 if peers <= 4 else 0.2, 0.9),
            "streaming": (0.4, 0.9),
        }[self.mode]
        chosen = rate if self.outer_lr is None else self.outer_lr
        return chosen, momentum if self.outer_momentum is None else self.outer_momentum

    @property
    def shared(self) -> dict[str, str]:
        """What all peers must have alike, in words."""
        own = ("pace", "join", "warmup_steps", "notice_s", "patience_s", "min_peers", "accumulate")
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name not in own}
        return {name: str(value) for name, value in values.items()}

    def _wrong(self) -> list[str]:
        found = [
            f"{name} must be at least {least}, got {value!r}"
            for name, least in _LEAST
            if not isinstance(value := getattr(self, name), int) or isinstance(value, bool) or value < least
        ]
        found += [
            f"{name} must be one of {', '.join(words)}, got {getattr(self, name)!r}"
            for name, words in _WORDS.items()
            if getattr(self, name) not in words
        ]
        found += [
            f"{name} must be a number from {least:g} to {most:g}, got {value!r}"
            for name, least, most in _RANGES
            if (value := getattr(self, name)) is not None and not _between(value, least, most)
        ]
        return found or self._apart() + self._codec()

    def _apart(self) -> list[str]:
        """Settings that do not go together."""
        found = []
        if self.fragments > self.sync_every:
            found.append(f"fragments must be at most sync_every ({self.sync_every}), got {self.fragments}")
        if isinstance(self.overlap, int) and not 0 <= self.overlap < self.sync_every:
            found.append(f"overlap must be from 0 to sync_every - 1 ({self.sync_every - 1}), got {self.overlap}")
        if not isinstance(self.overlap, int) and self.overlap not in (None, "auto", "round"):
            found.append(f'overlap must be a number of steps, "auto", "round" or None, got {self.overlap!r}')
        if self.fragments > 1 and self.overlap in ("auto", "round"):
            found.append(f"overlap must be a number of steps with fragments, got {self.overlap!r}; 5 is a good one")
        if self.eager and self.overlap != "round":
            found.append(f'eager is for overlap="round", got overlap={self.overlap!r}; leave it out')
        if self.mix and self.overlap == "round":
            found.append(f'mix must be 0 with overlap="round", which keeps nothing of a round, got {self.mix!r}')
        if self.warmup_steps and self.join == "holder":
            found.append(
                'warmup_steps must be 0 with join="holder", where an optimizer begins with the state of another one, '
                f'got {self.warmup_steps!r}; pass join="fresh" as well'
            )
        return found

    def _codec(self) -> list[str]:
        try:
            if self.quantize is not None:
                Codec(self.quantize)
        except ValueError as error:
            return [f"quantize: {error}"]
        return ["feedback needs a codec; pass quantize as well"] if self.feedback and self.quantize is None else []

    def unstable(self) -> str:
        """Why these rates may diverge; empty if the linear model finds none."""
        rate, momentum = self.rates(self._alike)
        bad = next((each for each in CONTRACTIONS if not self._settles(rate, momentum, each)), None)
        if bad is None:
            return ""
        return (
            f"outer_lr={rate:g} with outer_momentum={momentum:g} is unstable in this mode where a round shrinks a "
            f"direction by {bad:.0%} or more; leave both out, or take a smaller outer_lr"
        )

    @property
    def _alike(self) -> int:
        return max(ALIKE, self.min_peers)

    def _settles(self, rate: float, momentum: float, contraction: float) -> bool:
        """Whether the outer parameters of a quadratic go to its minimum."""
        late, own = self.mode in ("delayed", "eager"), 1 / self._alike if self.mode == "eager" else 0.0
        theta, speed, delta = 1.0, 0.0, 0.0
        for _ in range(400):
            fresh = contraction * theta
            step = delta + own * (fresh - delta) if late else fresh
            delta = fresh
            speed = momentum * speed + step
            theta -= rate * (step + momentum * speed)
            if not math.isfinite(theta) or abs(theta) > 1e6:
                return False
        return abs(theta) < 1.0


_LEAST = (
    ("sync_every", 1),
    ("min_peers", 1),
    ("fragments", 1),
    ("warmup_steps", 0),
    ("bucket_bytes", 0),
    ("accumulate", 1),
)
_WORDS = {
    "weigh": ("tokens", "steps", "equal"),
    "buffers": ("mean", "local"),
    "pace": ("steps", "speed"),
    "join": ("holder", "fresh"),
}
_RANGES = (
    ("outer_lr", 0.0, 10.0),
    ("outer_momentum", 0.0, 0.999),
    ("mix", 0.0, 1.0),
    ("clip", 0.0, 1e9),
    ("notice_s", 0.0, 86400.0),
    ("global_batch", 1, 1 << 40),
    ("patience_s", 0.0, 86400.0),
)


def _between(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
