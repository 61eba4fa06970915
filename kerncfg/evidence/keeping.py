"""A model left as it was, and what was done to it in between."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from kerncfg.evidence.contents import UNSEEN, same
from kerncfg.evidence.process import process_kept

__all__ = ["Change", "Memory", "described", "state_kept", "undisturbed"]

_BOXES = (dict, OrderedDict, list, set, deque)
_LARGEST = 4096  # entries; what is larger is a table that a model reads, and would take longer than the kernels
# What the applier keeps in a module. It puts equal methods back, not the same ones.
_OURS = "_kerncfg"
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Change:
    """What was done, in words, and what is there now; `None` where something was taken away."""

    words: str
    value: Any


@dataclass(slots=True, eq=False)
class _Tensor:
    place: str
    tensor: torch.Tensor
    alias: torch.Tensor  # keeps the memory that the tensor had
    value: torch.Tensor | None
    wanted: bool
    gradient: torch.Tensor | None
    gradient_value: torch.Tensor | None

    @property
    def moved(self) -> bool:
        plain = self.tensor.layout == torch.strided and not self.tensor.is_meta
        return plain and (self.tensor.dtype != self.alias.dtype or self.tensor.data_ptr() != self.alias.data_ptr())

    @property
    def written(self) -> bool:
        return self.moved or (self.value is not None and not same(self.tensor, self.value.to(self.tensor.device)))

    @property
    def gradient_written(self) -> bool:
        now = self.tensor.grad if self.tensor.is_leaf else None
        if now is not self.gradient or now is None or self.gradient_value is None:
            return now is not self.gradient
        return not same(now, self.gradient_value)


class Memory:
    """Everything that modules hold: entries, hooks, attributes down to the last list, values, gradients.

    `valued` says of which tensors the values are kept; `host` keeps them in the memory of the CPU.
    """

    def __init__(
        self, module: nn.Module, *, valued: Callable[[torch.Tensor], bool] | None = None, host: bool = False
    ) -> None:
        self._valued, self._host = valued, host
        self._modes = [(part, part.training) for part in module.modules()]
        self._boxes: list[tuple[str, Any, Any]] = []
        self._tensors: list[_Tensor] = []
        seen: set[int] = set()
        for path, part in module.named_modules():
            self._gather(path, vars(part), seen)

    def changes(self) -> dict[str, Change]:
        """Return what is not as it was, by its place."""
        found: dict[str, Change] = {}
        for place, box, then in self._boxes:
            found.update(_box_changes(place, box, then))
        for held in self._tensors:
            if held.written:
                found[held.place] = Change(f"writes to {held.place}", held.tensor.detach().clone())
            if held.gradient_written:
                found[f"{held.place}.grad"] = Change(f"writes to the gradient of {held.place}", held.tensor.grad)
            if held.tensor.requires_grad is not held.wanted:
                found[f"{held.place}.requires_grad"] = Change(f"sets requires_grad of {held.place}", not held.wanted)
        return found

    def restore(self) -> None:
        """Put everything back; what was registered or attached since is gone."""
        for module, training in self._modes:  # parents stand before their children, whom they take along
            if module.training is not training:
                module.train(training)
        for _, box, then in self._boxes:
            _restore(box, then)
        with torch.no_grad():
            for held in self._tensors:
                if held.moved:
                    held.tensor.data = held.alias
                if held.value is not None and held.written:
                    held.tensor.copy_(held.value)
                if held.tensor.requires_grad is not held.wanted:
                    held.tensor.requires_grad_(held.wanted)
                if held.gradient_written:
                    held.tensor.grad = held.gradient
                    if held.gradient is not None and held.gradient_value is not None:
                        held.gradient.copy_(held.gradient_value)

    def _gather(self, place: str, value: Any, seen: set[int]) -> None:
        if id(value) in seen:
            return
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            if not is_lazy(value):
                self._hold(place, value)
        elif isinstance(value, tuple):
            for number, part in enumerate(value):
                self._gather(f"{place}[{number}]", part, seen)
        elif type(value) in _BOXES:
            seen.add(id(value))
            if len(value) <= _LARGEST:
                self._boxes.append((place, value, value.copy()))
                for key, part in _items(value):
                    if key != _OURS:
                        self._gather(_below(place, key), part, seen)
        elif not isinstance(value, UNSEEN) and hasattr(value, "__dict__"):
            self._gather(place, vars(value), seen)

    def _hold(self, place: str, tensor: torch.Tensor) -> None:
        value = gradient_value = None
        gradient = tensor.grad if tensor.is_leaf else None
        if self._valued is None or self._valued(tensor):
            value = tensor.detach().to("cpu", copy=True) if self._host else tensor.detach().clone()
            gradient_value = None if gradient is None else gradient.detach().clone()
        held = _Tensor(place, tensor, tensor.detach(), value, tensor.requires_grad, gradient, gradient_value)
        self._tensors.append(held)


@contextmanager
def state_kept(module: nn.Module) -> Iterator[dict[str, Change]]:
    """Put a module back on the way out, and fill in what had changed."""
    memory, found = Memory(module), dict[str, Change]()
    try:
        yield found
        found.update(memory.changes())
    finally:
        memory.restore()


def described(changes: Mapping[str, Change]) -> str:
    """Say what was done to a module, the first few of it."""
    words = list(dict.fromkeys(change.words for change in changes.values()))
    if all(word.startswith("writes to ") for word in words):
        return f"writes to {' and '.join(word.removeprefix('writes to ') for word in words)}"
    rest = [f"and {len(words) - 3} more"] if len(words) > 3 else []
    return f"changes the module: {', '.join([*words[:3], *rest])}"


def _below(place: str, key: Any) -> str:
    if key in ("_parameters", "_buffers", "_modules"):
        return place  # a weight is named as people name it
    name = key if isinstance(key, str) else repr(key)
    return f"{place}.{name}" if place else name


def _items(box: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(box, dict):
        return list(box.items())
    return enumerate(box) if not isinstance(box, set) else ()


def _box_changes(place: str, box: Any, then: Any) -> Iterator[tuple[str, Change]]:
    if not isinstance(box, dict):
        if not _unchanged(box, then):
            yield place, Change(f"changes attribute {place}", box.copy())
        return
    for key in dict.fromkeys((*then, *box)):
        before, now = then.get(key, _MISSING), box.get(key, _MISSING)
        if key == _OURS or _one(now, before):
            continue
        where, kind = _below(place, key), _kind_in(place, box, now, before)
        verb = "adds" if before is _MISSING else "removes" if now is _MISSING else "sets"
        if kind == "hook":
            yield place, Change(f"changes {place}", len(box))
        else:
            yield where, Change(f"{verb} {kind} {where}", None if now is _MISSING else now)


def _kind_in(place: str, box: dict[Any, Any], now: Any, before: Any) -> str:
    if place.rpartition(".")[2].endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
        return "hook"
    value = before if now is _MISSING else now
    if isinstance(value, nn.Parameter):
        return "parameter"
    if isinstance(value, torch.Tensor):
        return "buffer" if "training" not in box else "attribute"
    return "submodule" if isinstance(value, nn.Module) else "attribute"


def _restore(box: Any, then: Any) -> None:
    if _unchanged(box, then):
        return
    if isinstance(box, dict):
        if list(box) == list(then):
            box.update({key: value for key, value in then.items() if not _one(box[key], value)})
        else:
            kept = {key: box[key] if key in box and _one(box[key], value) else value for key, value in then.items()}
            box.clear()
            box.update(kept)
    else:
        box.clear()
        (box.update if isinstance(box, set) else box.extend)(then)


def _unchanged(box: Any, then: Any) -> bool:
    if isinstance(box, set):
        return bool(box == then)
    if isinstance(box, dict):
        return list(box) == list(then) and all(_one(box[key], value) for key, value in then.items())
    return len(box) == len(then) and all(map(_one, box, then))


def _one(now: Any, then: Any) -> bool:
    """Whether two entries are one; bound methods are made anew each time."""
    return now is then or (type(now) is MethodType and type(then) is MethodType and now == then)


@contextmanager
def undisturbed(model: nn.Module, parts: Iterable[nn.Module] = ()) -> Iterator[Callable[[], None]]:
    """Put a model, the random state and the process back on the way out; gradients are absent meanwhile.

    Of parameters, the values are kept (in the CPU's memory) only of `parts`, which kernels can reach: a whole model
    may not fit twice. Yields what puts the model alone back, to begin anew.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    reachable = {id(parameter) for part in parts for parameter in part.parameters()}
    memory = Memory(model, valued=lambda tensor: id(tensor) not in parameters or id(tensor) in reachable, host=True)

    def bare() -> None:
        for parameter in model.parameters():
            parameter.grad = None

    def again() -> None:
        memory.restore()
        bare()

    with process_kept(), _random_state_kept(model):
        bare()
        try:
            yield again
        finally:
            memory.restore()


@contextmanager
def _random_state_kept(model: nn.Module) -> Iterator[None]:
    """Fork the random state of the CPU and of the devices that the model is on."""
    used = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    types = {device.type for device in used} & {"cuda", "xpu"}
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for kind in sorted(types):
            indices = sorted(device.index or 0 for device in used if device.type == kind)
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield
