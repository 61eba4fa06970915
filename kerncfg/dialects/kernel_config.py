"""transformers' `KernelConfig` to a document.

Its objects are read by their attributes: neither transformers nor `kernels` is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from kerncfg.compiler.schema import validate
from kerncfg.compiler.tree import KeyPath, spell
from kerncfg.documents.reference import KernelRef, is_folder
from kerncfg.documents.target import MODE_PREFERENCE, Mode
from kerncfg.errors import ConfigError, Issue

__all__ = ["check_rows", "from_kernel_config"]

_FALLBACK = "fallback"
_MODES: Mapping[frozenset[str], str] = {
    **{frozenset(mode.value.split("_")): mode.value for mode in Mode},
    frozenset({_FALLBACK}): _FALLBACK,
}
_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "sdpa", "eager")
_FORMS = "write 'org/repo:Name', ('org/repo:Name', {'version': 1}), or one of these for each device"
_FUSION = "write (('RMSNorm', 'model.layers.*.norm'), ('MLP', 'model.layers.*.mlp'))"


def from_kernel_config(
    mapping: Any = None,
    *,
    inherit_mapping: bool = True,
    use_local_kernel: bool = False,
    attn_implementation: str | Mapping[str, str] | None = None,
    use_kernels: bool = True,
) -> dict[str, Any]:
    """Return the document that a `KernelConfig` means, for `kerncfg.plan(config=document)`.

    A text without a version stays without one: transformers takes `v1` for it, kerncfg the newest version that fits.

    Args:
        mapping: What `KernelConfig` takes, one of its objects, or a mapping of the `kernels` library.
        inherit_mapping: Whether names that are not in it keep the default mapping.
        use_local_kernel: Whether its texts are folders.
        attn_implementation: What `from_pretrained` takes beside it.
        use_kernels: Said false, the document switches everything off.

    Raises:
        ConfigError: What was given says no kernels; it holds every fault.
    """
    reader = _Reader(local=use_local_kernel or bool(getattr(mapping, "use_local_kernel", False)))
    said = getattr(mapping, "kernel_mapping", mapping)
    inherit = inherit_mapping and getattr(mapping, "inherit_mapping", True) is not False
    document: dict[str, Any] = {} if use_kernels else {"enabled": False}
    if said is not None and not isinstance(said, Mapping):
        raise ConfigError(f"a kernel mapping is a map from names to kernels, found {_kind(said)}", hint=_FORMS)
    kernels = {name: reader.row(("kernels", name), row) for name, row in (said or {}).items() if isinstance(name, str)}
    document["kernels"] = kernels if inherit else {**kernels, "inherit_mapping": False}
    if fusions := dict(reader.fusions({key: row for key, row in (said or {}).items() if not isinstance(key, str)})):
        document["fusions"] = fusions
    if (attention := reader.attention(attn_implementation)) is not None:
        document["attention"] = {"default": attention}
    if reader.issues:
        raise ConfigError(reader.issues)
    check_rows(document)
    return document


def check_rows(document: Mapping[str, Any]) -> None:
    """Check the rows of a document, of every kind.

    Raises:
        ConfigError: Some are not valid; it holds every fault.
    """
    issues: list[Issue] = []
    for node in ("kernels", "fusions", "attention"):
        try:
            validate(document.get(node) or {}, node, prefix=(node,))
        except ConfigError as error:
            issues += error.issues
    if issues:
        raise ConfigError(issues)


class _Reader:
    """Reads one mapping and gathers its faults on the way."""

    def __init__(self, *, local: bool) -> None:
        self.local = local
        self.issues: list[Issue] = []

    def row(self, path: KeyPath, said: Any) -> Any:
        """Read what one name runs: one kernel, or one for each device."""
        if not isinstance(said, Mapping) or "kernel" in said:
            return self.cell(path, said)
        cells: dict[str, Any] = {}
        for key, value in said.items():
            device, capability = _device(key)
            cell = self.modes((*path, device), value)
            if capability:
                cell = _each(cell, partial(_conditioned, capability))
            cells[device] = _both(cells[device], cell) if device in cells else cell
        return cells

    def modes(self, path: KeyPath, said: Any) -> Any:
        """Read what one device runs: one kernel, or one for each mode."""
        if not isinstance(said, Mapping) or "kernel" in said:
            return self.cell(path, said)
        cells: dict[str, Any] = {}
        for key, value in said.items():
            if (mode := _mode(key)) is None:
                hint = f"there are {', '.join(mode.upper() for mode in ('inference', 'training', 'torch_compile'))}"
                self.fault(path, f"{_text(key)!r} is no mode", hint)
            else:
                cells[mode] = self.cell((*path, mode), value)
        return _without_fallback(cells)

    def cell(self, path: KeyPath, said: Any) -> Any:
        """Read one kernel, or several in order."""
        if isinstance(said, list) and not _is_pair(said):
            return [self.cell((*path, index), one) for index, one in enumerate(said)]
        if said is None or said == "":
            return None
        if isinstance(said, str):
            return self.reference(path, said)
        if isinstance(said, tuple | list) and _is_pair(said):
            return self.candidate(path, {"kernel": said[0], **said[1]})
        if isinstance(said, Mapping):
            return self.candidate(path, said)
        if hasattr(said, "layer_name") or hasattr(said, "func_name"):
            return self.repository(path, said)
        return self.fault(path, f"a kernel is a text or a pair of text and metadata, found {_kind(said)}", _FORMS)

    def candidate(self, path: KeyPath, said: Mapping[str, Any]) -> Any:
        """Read a kernel with its metadata; what is `None` there says nothing."""
        found = {key: value for key, value in said.items() if value is not None and key != "kernel"}
        kernel = said["kernel"]
        if not isinstance(kernel, str):
            return self.fault(path, f"the first of a pair is the kernel's text, found {_kind(kernel)}", _FORMS)
        if isinstance(found.get("trust_remote_code"), list):
            found["trust_remote_code"] = kernel.partition(":")[0] in found["trust_remote_code"]
        if found.get("trust_remote_code") is False:
            del found["trust_remote_code"]
        reference = self.reference(path, kernel)
        return {"kernel": reference, **found} if found else reference

    def repository(self, path: KeyPath, said: Any) -> Any:
        """Read an object of the `kernels` library that names a layer or function of a repository or folder."""
        name = getattr(said, "layer_name", None) or getattr(said, "func_name", None)
        if (folder := getattr(said, "_repo_path", None)) is not None:
            text = str(folder)
            return self.reference(path, f"{text if is_folder(text) else f'./{text}'}:{name}")
        if not hasattr(said, "_version"):
            hint = "write ('org/repo:Name', {'revision': COMMIT})"
            return self.fault(path, f"a {type(said).__name__} holds its commit in a lock file", hint)
        keys = {"revision": said._revision, "version": said._version, "trust_remote_code": said._trust_remote_code}
        if keys["revision"] is not None:
            del keys["version"]
        return self.candidate(path, {"kernel": f"{said._repo_id}:{name}", **keys})

    def reference(self, path: KeyPath, text: str) -> str | None:
        """Check a kernel's text; a folder without a sign of one gets it."""
        written = text if not self.local or is_folder(text) else f"./{text}"
        try:
            KernelRef.parse(written)
        except ConfigError as error:
            for issue in error.issues:
                self.fault(path, issue.message, issue.hint)
        return written

    def fusions(self, said: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        """Yield each group of members with what it runs, under a name made of their classes."""
        names: set[str] = set()
        for key, row in said.items():
            pairs = key if isinstance(key, tuple) else ()
            if not pairs or not all(_is_member(pair) for pair in pairs):
                self.fault(("kernels",), f"{key!r} is neither a name nor pairs of class name and path", _FUSION)
                continue
            stem = re.sub(r"\W", "_", "_".join(pair[0] for pair in pairs))
            name = next(name for name in _numbered(stem) if name not in names)
            names.add(name)
            found = self.row(("fusions", name), row)
            cells = found if isinstance(found, Mapping) else {"kernel": found}
            yield name, {"members": [list(pair) for pair in pairs], **cells}

    def attention(self, said: Any) -> str | None:
        """Read what `attn_implementation` says."""
        if isinstance(said, Mapping) and set(said) == {""}:
            said = said[""]
        if said is None or said == "":
            return None
        if not isinstance(said, str) or said.startswith("paged|"):
            hint = "write a row of `attention` with its path for each part"
            self.fault(("attention",), f"attn_implementation {said!r} has no equivalent", hint)
        elif said not in _ATTENTION and not is_folder(said) and "/" not in said:
            hint = f"write {', '.join(_ATTENTION)}, or a repository"
            self.fault(("attention",), f"attn_implementation {said!r} has no equivalent", hint)
        return str(said)

    def fault(self, path: KeyPath, message: str, hint: str | None) -> None:
        """Keep a fault for the one error at the end."""
        self.issues.append(Issue(message=message, path=spell(path), hint=hint))


def _device(key: Any) -> tuple[str, str | None]:
    """Return a device's name and its range of capabilities, of a text or of an object of the `kernels` library."""
    properties = getattr(key, "properties", None)
    if properties is None:
        return str(getattr(key, "type", key)), None
    low, high = properties.min_capability, properties.max_capability
    bounds = [f">={low // 10}.{low % 10}"] if low else []
    # The library's own way to say "no upper bound" is the largest integer.
    bounds += [f"<={high // 10}.{high % 10}"] if high < 1000 else []
    return str(key.type), ",".join(bounds) or None


def _mode(key: Any) -> str | None:
    words = _text(key).lower().replace("torch_compile", "compile")
    return _MODES.get(frozenset(re.split(r"[|_.]", words.replace(" ", "").replace("mode.", ""))))


def _text(key: Any) -> str:
    return str(getattr(key, "name", None) or key)


def _without_fallback(cells: dict[str, Any]) -> Any:
    """Return the modes without the library's `FALLBACK`, which is what runs where no other mode may serve."""
    if _FALLBACK not in cells:
        return cells
    last = cells.pop(_FALLBACK)
    return (
        {
            mode.value: cells.get(next((one.value for one in MODE_PREFERENCE[mode] if one.value in cells), ""), last)
            for mode in Mode
        }
        if cells
        else last
    )


def _conditioned(capability: str, found: Any) -> dict[str, Any]:
    """Return a candidate for a range of capabilities."""
    return {**(found if isinstance(found, Mapping) else {"kernel": found}), "capability": capability}


def _each(cell: Any, change: Callable[[Any], Any]) -> Any:
    """Return what a device runs with every candidate changed."""
    if isinstance(cell, list):
        return [_each(one, change) for one in cell]
    if isinstance(cell, Mapping) and "kernel" not in cell:
        return {mode: _each(one, change) for mode, one in cell.items()}
    return change(cell)


def _both(first: Any, second: Any) -> Any:
    """Return what a device runs that was given twice, for two ranges of capabilities."""
    modal = [isinstance(cell, Mapping) and "kernel" not in cell for cell in (first, second)]
    if any(modal):
        every = [mode.value for mode in Mode]
        one, other = (
            cell if is_map else dict.fromkeys(every, cell) for cell, is_map in zip((first, second), modal, strict=True)
        )
        return {
            mode: _both(one[mode], other[mode]) if mode in one and mode in other else {**one, **other}[mode]
            for mode in every
            if mode in one or mode in other
        }
    return [*(first if isinstance(first, list) else [first]), *(second if isinstance(second, list) else [second])]


def _is_pair(said: Any) -> bool:
    return len(said) == 2 and isinstance(said[1], Mapping) and "kernel" not in said[1]


def _is_member(pair: Any) -> bool:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1


def _kind(said: Any) -> str:
    return f"a {type(said).__name__}"
