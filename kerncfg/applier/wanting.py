"""What parts of a model are to use as their attention, and what speaks against it; nothing here changes the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kerncfg.applier.adapters.attention import BUILT_IN, Part
from kerncfg.applier.adapters.attention_forms import Form, called, form
from kerncfg.applier.adapters.attention_source import SETTING
from kerncfg.applier.match import glob
from kerncfg.errors import ApplyError
from kerncfg.sources import KernelCode

__all__ = ["Wanted", "chosen", "codes_of", "common", "fault", "form_of", "said", "text"]

_PLAIN = ("inference", "training")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """What one part of a model is to use, by which row.

    `codes` are for when the model is not training and when it is: a `KernelCode`, a kernel's bare code, the name of one
    of transformers' own, or `None` for what the part has. `modes` are what the two are called in the report.
    """

    part: Part
    name: str
    codes: tuple[Any, Any]
    mask: str = "auto"
    reason: str | tuple[str, str] = "chosen"
    modes: tuple[str, str] = _PLAIN

    @classmethod
    def of(cls, part: Part, code: Any, mask: str = "auto", name: str = "attention") -> Wanted:
        """Return one of a single code, or of a pair of them for the two modes."""
        return cls(part=part, name=name, codes=code if isinstance(code, tuple) else (code, code), mask=mask)

    def resolved(self) -> tuple[Any, Any]:
        """Return the codes, with the name of what the part has for `None`."""
        idle, training = (self.part.current if code is None else code for code in self.codes)
        return (idle, idle) if _same(idle, training) else (idle, training)


def chosen(found: Sequence[Part], path: str | None) -> tuple[Part, ...]:
    """Return the parts that a path glob names: by the module of a part, one around it, or all the attention in it.

    Raises:
        ApplyError: No part is named, or only some of the attention in one.
    """
    if not found:
        raise ApplyError(
            "the model has no part whose attention can be chosen",
            hint="only models of transformers that ask their configuration for it have that; take the row out",
        )
    if path is None:
        return tuple(found)
    pattern = glob(path)
    taken = []
    for part in found:
        if any(pattern.fullmatch(above) for above in _dotted(part.path)):
            taken.append(part)
            continue
        inside = [place.path for place in part.places if pattern.fullmatch(f"{place.path}.")]
        if inside and len(inside) < len(part.places):
            left = next(place.path for place in part.places if place.path not in inside)
            raise ApplyError(
                f"{path} names {inside[0]}, and not {left}, which gets the same mask from {text(part)}",
                hint=f"attention is chosen for a whole part: write {part.path or '**'!r}",
            )
        if inside:
            taken.append(part)
    if not taken:
        paths = ", ".join(sorted(text(part) for part in found))
        raise ApplyError(f"no part of the model is at {path}", hint=f"the parts that have attention: {paths}")
    return tuple(taken)


def fault(wanted: Wanted) -> str | None:
    """Say why a part cannot use what is wanted for it; nothing is changed."""
    part, codes = wanted.part, wanted.resolved()
    if codes[0] is codes[1] and codes[0] == part.current:
        return None
    if part.mute:
        return f"{type(part.module).__qualname__} knows no choice of attention"
    for place in (*part.places, *part.readers):
        cls, kept = type(place.module).__qualname__, [place.module.__dict__.get(name) for name in place.reading.copied]
        if place.reading.fixed or kept:
            return f"{place.path} ({cls}) chose its attention when it was built, and looks at no later choice"
    forms = [form_of(code, wanted.mask) for code in codes]
    for code, found in zip(codes, forms, strict=True):
        if reason := found.fault or found.misfit(part) or _refused(part, code, found):
            return reason
    if common(forms) is None:
        first, second = (" or ".join(found.masks) for found in forms)
        both = f"{said(codes[0])} works with {first}, {said(codes[1])} with {second}"
        return f"one mask is made for both modes, and {both}"
    if codes[0] is codes[1]:
        return None
    if flash := [code for code in codes if isinstance(code, str) and code.startswith("flash")]:
        return f"{flash[0]} is for both modes or none: transformers finds it by its name, and two modes share one"
    if "eager" in codes and any(place.reading.eager is None for place in part.places):
        return f"{type(part.module).__qualname__} has no eager attention that could be called for one mode only"
    return None


def form_of(code: Any, mask: str) -> Form:
    """Return what is wanted as an attention function."""
    return form(code.code if isinstance(code, KernelCode) else code, mask)


def common(forms: Sequence[Form]) -> str | None:
    """Return the best kind of masks that all can work with."""
    return next((kind for kind in forms[0].masks if all(kind in found.masks for found in forms)), None)


def _refused(part: Part, code: Any, found: Form) -> str | None:
    """Say what a part's class, or its configuration, has against a kind of attention."""
    module, cls = part.module, type(part.module).__qualname__
    if getattr(part.config, "_output_attentions", False) and code != "eager":
        return "config.output_attentions asks for the weights of attention, which only eager gives"
    masks = found.masks[0]
    if reason := _objection(part.config, masks if masks in BUILT_IN else "kernel"):
        return reason
    if found.kind == "built-in":
        check = getattr(module, "get_correct_attn_implementation", None)
        try:
            got = check(code) if check is not None else code
        except (ValueError, ImportError) as error:
            return str(error).partition("\n")[0]
        return None if got == code else f"{cls} takes {got} where {code} is asked for"
    flag = {"flash": "_supports_flash_attn", "function": "_supports_sdpa"}.get(found.kind)
    if flag is not None and not getattr(module, flag, True):
        return f"{cls} says {flag} = False, and this kernel is called in that way"
    allowed = getattr(module, "_compatible_flash_implementations", None)
    if found.kind == "flash" and allowed is not None and not _named(code, allowed):
        return f"{cls} works with the attention {', '.join(allowed)} only"
    for place in part.places:
        if place.reading.names:
            asks, names = type(place.module).__qualname__, " or ".join(place.reading.names)
            return f"{asks} asks whether its attention is {names}, which a kernel's name is not"
    return None


def _named(code: Any, allowed: Iterable[str]) -> bool:
    return isinstance(code, KernelCode) and str(code.kernel.reference).partition(":")[0].partition("@")[0] in allowed


def _objection(config: Any, name: str) -> str | None:
    """Say what the setter of a configuration's own class has against a name; it writes to a copy without parts."""
    trial = object.__new__(type(config))
    # Without its parts, since the setter writes to them too.
    trial.__dict__.update({key: value for key, value in config.__dict__.items() if not hasattr(type(value), SETTING)})
    try:
        trial._attn_implementation = name
    except ValueError as error:
        return str(error).partition("\n")[0]
    return None


def _dotted(path: str) -> list[str]:
    """Return the model's own path, those around a path, and the path itself, as `glob` wants them."""
    pieces = path.split(".") if path else []
    return ["", *(".".join(pieces[:end]) + "." for end in range(1, len(pieces) + 1))]


def text(part: Part) -> str:
    """Return what a part is called, for people."""
    return part.path or "the model"


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, KernelCode) and isinstance(second, KernelCode):
        return first.kernel == second.kernel
    return first is second or (isinstance(first, str) and first == second)


def codes_of(wanted: Wanted) -> str:
    """Return what a part is to use in both modes, for people."""
    return " and ".join(dict.fromkeys(map(said, wanted.resolved())))


def said(code: Any) -> str:
    """Return what one code is called, for people."""
    if code is None:
        return "original"
    if isinstance(code, str):
        return code
    return str(code.kernel.reference) if isinstance(code, KernelCode) else called(code)
