"""What a plan is made for: a machine, its software, and the mode a model runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

__all__ = ["DEVICES", "MODE_PREFERENCE", "Device", "Mode", "Target", "canonical_device"]


class Mode(StrEnum):
    """How a model is run; a kernel may be for one of these only."""

    INFERENCE = "inference"
    TRAINING = "training"
    INFERENCE_COMPILE = "inference_compile"
    TRAINING_COMPILE = "training_compile"

    @property
    def training(self) -> bool:
        """Whether gradients are needed."""
        return self in (Mode.TRAINING, Mode.TRAINING_COMPILE)

    @property
    def compiled(self) -> bool:
        """Whether the model runs under `torch.compile`."""
        return self in (Mode.INFERENCE_COMPILE, Mode.TRAINING_COMPILE)


# Who serves whom where no row names the mode: the same table as the Hub library's, best first.
MODE_PREFERENCE: Mapping[Mode, tuple[Mode, ...]] = {
    Mode.INFERENCE: (Mode.INFERENCE, Mode.INFERENCE_COMPILE, Mode.TRAINING, Mode.TRAINING_COMPILE),
    Mode.TRAINING: (Mode.TRAINING, Mode.TRAINING_COMPILE),
    Mode.INFERENCE_COMPILE: (Mode.INFERENCE_COMPILE, Mode.TRAINING_COMPILE),
    Mode.TRAINING_COMPILE: (Mode.TRAINING_COMPILE,),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device: what PyTorch calls it, and whether it has a compute capability."""

    torch: str
    has_capability: bool = False
    aliases: tuple[str, ...] = ()


DEVICES: Mapping[str, Device] = {
    "cuda": Device("cuda", has_capability=True),
    "rocm": Device("cuda", has_capability=True),
    "xpu": Device("xpu"),
    "mps": Device("mps", aliases=("metal",)),
    "npu": Device("npu"),
    "neuron": Device("neuron"),
    "tpu": Device("tpu"),
    "cpu": Device("cpu"),
}

_ALIASES = {alias: name for name, device in DEVICES.items() for alias in device.aliases}


def canonical_device(name: str) -> str | None:
    """Return the device's own name for a name or alias, or `None` if there is no such device."""
    name = _ALIASES.get(name, name)
    return name if name in DEVICES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The machine and software a plan is made for; versions are text, `None` is not known.

    `capability` is the compute capability as text (`9.0`), `arch` ROCm's name for an AMD device (`gfx942`; `None`
    for all others), `backend_version` the version of CUDA, ROCm,
    XPU or CANN that torch was built for, `packages` the installed versions that conditions ask about.
    """

    device: str
    capability: str | None
    arch: str | None = None
    torch: str | None
    backend_version: str | None
    cxx11_abi: bool | None
    cpu: str
    os: str
    macos: str | None
    python: str
    free_threaded: bool
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain data, every key present."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**data, "packages": dict(sorted(self.packages.items()))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a target from the plain data of `to_dict`."""
        return cls(**data)

    def difference(self, other: Target) -> dict[str, tuple[Any, Any]]:
        """Return every key that differs, with this target's value and the other's."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}
