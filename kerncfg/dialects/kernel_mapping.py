"""A document or a plan to what transformers' `KernelConfig` takes, where it can be said there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kerncfg.compiler.normalise import normalise
from kerncfg.compiler.tree import KeyPath, spell
from kerncfg.dialects.kernel_config import check_rows
from kerncfg.documents.config import ANY, Candidate, KernelRef, Row
from kerncfg.documents.plan import Plan
from kerncfg.documents.target import Mode
from kerncfg.errors import ConfigError, Issue

if TYPE_CHECKING:
    from kerncfg.documents.step import Step

__all__ = ["to_kernel_config"]

_DEVICES = ("cuda", "rocm", "xpu", "npu", "neuron", "tpu", "mps")  # those that a KernelConfig may name
_UNSAID = object()  # what stands for a kernel that cannot be said; `None` stands for off
_BARE: Mapping[str, Any] = {
    "enabled": True,
    "inherited": {},
    "kernels": {},
    "fusions": {},
    "attention": {},
    "policy": {"fallback": "original", "strict": False, "require_pin": False, "verify": {}},
    "trust": {"publishers": {}, "repositories": {}, "allow_all_kernels": False},
}


def to_kernel_config(source: Mapping[str, Any] | Plan) -> dict[str, Any]:
    """Return the arguments of the `KernelConfig` that says the same as a document or a plan.

    `transformers.KernelConfig(**to_kernel_config(document))` makes the object. A text without a version stays without
    one: kerncfg takes the newest version that fits, transformers `v1`. A plan says every name of its one device.

    Raises:
        ConfigError: The rows are not valid, or something has no equivalent there; it holds everything that has none.
    """
    writer = _Writer()
    mapping: dict[Any, Any] = {}
    if isinstance(source, Plan):
        mapping = dict(writer.steps(source))
        inherit = False
    else:
        kernels = source.get("kernels", {})
        check_rows(source)
        inherit = kernels.get("inherit_mapping") is not False
        writer.nodes(source)
        mapping = dict(writer.rows(kernels, inherit)) | dict(writer.fusions(source.get("fusions") or {}))
    if writer.folders and writer.repositories:
        hint = "make one KernelConfig of the folders and one of the repositories"
        writer.unsaid(("kernels",), "folders and repositories in one mapping", hint)
    if writer.issues:
        raise ConfigError(writer.issues)
    return {"kernel_mapping": mapping, "use_local_kernel": writer.folders, "inherit_mapping": inherit}


class _Writer:
    """Writes one mapping and gathers what cannot be said in it."""

    def __init__(self) -> None:
        self.folders = False
        self.repositories = False
        self.issues: list[Issue] = []

    def nodes(self, document: Mapping[str, Any]) -> None:
        """Note what a document says beside its rows."""
        if document.get("enabled") is False:
            self.unsaid(("enabled",), "everything off", "pass use_kernels=False to from_pretrained, or leave it out")
        for name, row in (document.get("attention") or {}).items():
            said = row.get("kernel") if isinstance(row, Mapping) else row
            hint = f"pass attn_implementation={said!r} to from_pretrained, and leave the row out"
            self.unsaid(("attention", name), "an attention row", hint)

    def rows(self, kernels: Mapping[str, Any], inherit: bool) -> Iterator[tuple[str, Any]]:
        """Yield each row of the mapping."""
        config = normalise({**_BARE, "kernels": kernels})
        for name, said in kernels.items():
            if name in ("inherit_mapping", "defaults"):
                continue
            for place in _inherited(said):
                self.unsaid(("kernels", name, *place), "what would be inherited", "name the kernel")
            if (row := config.rows.get(name)) is not None:
                yield from self.row(("kernels", name), row, inherit, said)

    def row(self, path: KeyPath, row: Row, inherit: bool, said: Any) -> Iterator[tuple[str, Any]]:
        """Yield a row, if a `KernelConfig` can say it."""
        name = row.name
        for key in ("match", "exclude", "fallback", "inherit_mapping"):
            if isinstance(said, Mapping) and key in said and said[key] not in ([], None):
                self.unsaid((*path, key), key, "leave it out")
        cells = {device: self.cell((*path, device), modes) for device, modes in row.cells.items()}
        off = [device for device, value in cells.items() if value is None]
        if off and inherit:
            hint = "say inherit_mapping: false, and leave the row out"
            self.unsaid(path, "off, which leaves what is inherited", hint)
        kept = {device: value for device, value in cells.items() if value not in (None, _UNSAID)}
        for device in kept:
            if device != ANY and device not in _DEVICES:
                self.unsaid((*path, device), f"the device {device}", f"there are {', '.join(_DEVICES)}")
        if ANY in kept and len(cells) > 1:
            self.unsaid(path, "a kernel for every device beside one of a single device", "name each device")
        elif kept:
            yield name, kept.get(ANY) if ANY in kept else kept

    def fusions(self, said: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield each fusion under the pairs of its members."""
        for name, fusion in said.items():
            row = {key: value for key, value in fusion.items() if key != "members"}
            found = normalise({**_BARE, "fusions": {name: fusion}}).fusions[name]
            members = tuple((member.name, member.path) for member in found.members)
            yield from ((members, value) for _, value in self.row(("fusions", name), found, False, row))

    def cell(self, path: KeyPath, modes: Mapping[Mode, Sequence[Candidate]]) -> Any:
        """Return what one device runs: it must be one kernel without conditions, the same in every mode."""
        found = list(dict.fromkeys(modes.values()))
        if len(found) != 1 or len(modes) < len(Mode):
            return self.unsaid(path, "kernels for single modes", "name one kernel for all modes")
        if len(found[0]) != 1:
            return self.unsaid(path, "several candidates", "name one kernel")
        (candidate,) = found[0]
        for key in candidate.conditions.to_dict():
            self.unsaid((*path, key), f"the condition {key}", "leave it out")
        text = self.kernel(path, candidate.ref)
        if not candidate.trust_remote_code or text in (None, _UNSAID):
            return text
        if isinstance(text, tuple):
            return (text[0], {**text[1], "trust_remote_code": True})
        return self.unsaid(path, "trust_remote_code without a version", "say the version or the revision as well")

    def kernel(self, path: KeyPath, ref: KernelRef, commit: str | None = None) -> Any:
        """Return a reference as a `KernelConfig` writes it."""
        if ref.scheme == "original":
            return None
        if ref.scheme == "path":
            self.folders = True
            return f"{ref.location}:{ref.name}"
        if ref.scheme != "hub":
            return self.unsaid(path, f"{str(ref)!r}", "name a Hub kernel or a folder")
        self.repositories = True
        if ref.version and not commit:
            return self.unsaid(path, f"the range {ref.version!r}", "name one version, or convert the plan")
        text, revision = f"{ref.location}:{ref.name}", commit or ref.revision
        if revision is None:
            return text
        version = re.fullmatch(r"v(\d+)", revision)
        return (text, {"version": int(version[1])} if version else {"revision": revision})

    def steps(self, plan: Plan) -> Iterator[tuple[str, Any]]:
        """Yield each step of a plan that binds a kernel."""
        device = plan.target.device
        for step in plan.steps:
            if step.kind != "bind":
                if step.kind != "keep":
                    self.unsaid((step.name,), f"a step of kind {step.kind}", "convert the document")
                continue
            if device not in _DEVICES:
                self.unsaid((step.name,), f"the device {device}", f"there are {', '.join(_DEVICES)}")
            elif (found := self.step(step)) is not _UNSAID:
                yield step.name, {device: found}

    def step(self, step: Step) -> Any:
        """Return the one kernel of a step, at its commit."""
        if step.match or step.exclude:
            return self.unsaid((step.name,), "match and exclude", "leave them out")
        first = {mode: found.choices[:1] for mode, found in step.modes.items()}
        kernels = {choices[0].kernel if choices else None for choices in first.values()}
        if any(choices[0].conditions for choices in first.values() if choices):
            return self.unsaid((step.name,), "conditions that a module answers", "leave them out")
        if len(kernels) != 1 or None in kernels:
            return self.unsaid((step.name,), "kernels for single modes", "name one kernel for all modes")
        (kernel,) = kernels
        assert kernel is not None
        return self.kernel((step.name,), kernel.reference, kernel.commit)

    def unsaid(self, path: KeyPath, what: str, hint: str) -> object:
        """Keep something that cannot be said, and return what stands for it."""
        self.issues.append(Issue(message=f"{what}: a KernelConfig cannot say it", path=spell(path), hint=hint))
        return _UNSAID


def _inherited(said: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield where a row names what it would be without this line."""
    if said == "inherited":
        yield path
    elif isinstance(said, Mapping | list):
        for key, value in said.items() if isinstance(said, Mapping) else enumerate(said):
            yield from _inherited(value, (*path, key))
