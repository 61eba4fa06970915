"""What happens to one name, in every mode, and why nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kerncfg.documents.config import KernelRef, Match, Member
from kerncfg.documents.target import Mode

if TYPE_CHECKING:
    from kerncfg.documents.lock import File

__all__ = ["Attend", "Bind", "Choice", "Fuse", "Keep", "Kernel", "ModePlan", "Rejection", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel exactly: the reference, and the commit, build and digest of the code behind it.

    `repository` is where a redirect led, if the code is not where the reference says. `dependencies` are the kernels
    that this one imports. `files` are those of the build, all of which the digest stands for.
    """

    reference: KernelRef
    repository: str | None = None
    commit: str | None = None
    variant: str | None = None
    digest: str | None = None
    dependencies: tuple[Kernel, ...] = ()
    files: tuple[File, ...] = field(default=(), compare=False, repr=False)

    @property
    def place(self) -> str:
        """The repository, folder or module that the code is in, wherever a redirect led."""
        return self.repository or self.reference.place

    def identity(self) -> list[Any]:
        """Return what is the same for all who run this code: a folder by its content, a tag by its commit."""
        ref = self.reference
        place = replace(ref, location="") if ref.scheme == "path" else ref
        if self.commit:
            place = replace(ref, location=self.repository or ref.location, revision=None, version=None)
        said = [f"{ref.scheme} {place}", self.commit, self.variant, self.digest]
        return [*said, *([[needed.identity() for needed in self.dependencies]] if self.dependencies else [])]

    def with_dependencies(self) -> Iterator[Kernel]:
        """Yield the kernels that this one needs, each after those it needs itself, and this one last."""
        for needed in self.dependencies:
            yield from needed.with_dependencies()
        yield self

    def to_dict(self) -> dict[str, Any]:
        """Return the kernel as plain data, without its files."""
        return {
            "reference": str(self.reference),
            "repository": self.repository,
            "commit": self.commit,
            "variant": self.variant,
            "digest": self.digest,
            "dependencies": [needed.to_dict() for needed in self.dependencies],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], files: Mapping[str, tuple[File, ...]]) -> Self:
        """Build a kernel from plain data; `files` are those of each digest."""
        said = {key: data[key] for key in ("repository", "commit", "variant", "digest")}
        return cls(
            reference=KernelRef.parse(data["reference"], attention=True),
            dependencies=tuple(cls.from_dict(needed, files) for needed in data["dependencies"]),
            files=files.get(data["digest"], ()),
            **said,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel that was accepted: `conditions` only a module can answer, `needs` the target was found to meet.

    `builds` has a verdict on each build that was there, by its name. `asked` is where each attribute of
    `conditions["when"]` was said: not always where the kernel was. `trusted` is what let its code run when the plan was
    made, for information: whoever applies the plan is asked again.
    """

    kernel: Kernel
    builds: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str | None] = field(default_factory=dict)
    trusted: str | None = None
    origin: str | None
    reason: str

    @property
    def original(self) -> bool:
        """Whether this is the model's own forward."""
        return self.kernel.reference.scheme == "original"

    @property
    def final(self) -> bool:
        """Whether nothing after this choice can be reached: the original, whatever the module."""
        return self.original and not self.conditions

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {
            **self.kernel.to_dict(),
            "builds": dict(self.builds),
            "conditions": dict(self.conditions),
            "needs": dict(self.needs),
            "asked": dict(self.asked),
            "trusted": self.trusted,
            "origin": self.origin,
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], files: Mapping[str, tuple[File, ...]]) -> Self:
        """Build a choice from plain data; `files` are those of each digest."""
        said = {key: data[key] for key in ("builds", "conditions", "needs", "asked", "trusted", "origin", "reason")}
        return cls(kernel=Kernel.from_dict(data, files), **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that was passed over or never asked about, and why."""

    reference: str
    reason: str
    origin: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the rejection as plain data."""
        return {"reference": self.reference, "reason": self.reason, "origin": self.origin}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModePlan:
    """What one mode runs: the accepted kernels in order, and those passed over.

    `unreached` holds the candidates that nothing was asked about: behind an unconditional original, or
    inherited and replaced.
    """

    choices: tuple[Choice, ...]
    rejected: tuple[Rejection, ...] = ()
    unreached: tuple[Rejection, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what the mode runs as plain data."""
        return {
            "choices": [choice.to_dict() for choice in self.choices],
            "rejected": [rejection.to_dict() for rejection in self.rejected],
            "unreached": [rejection.to_dict() for rejection in self.unreached],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], files: Mapping[str, tuple[File, ...]]) -> Self:
        """Build what a mode runs from plain data; `files` are those of each digest."""
        return cls(
            choices=tuple(Choice.from_dict(choice, files) for choice in data["choices"]),
            rejected=tuple(Rejection(**rejection) for rejection in data["rejected"]),
            unreached=tuple(Rejection(**rejection) for rejection in data["unreached"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens to one name, in every mode. `own` tells the user's rows from inherited ones.

    `node` is `kernels`, `fusions` or `attention`; `members` is for fusions, `path` and `mask` are for attention.
    """

    kind: ClassVar[str]
    node: str = "kernels"
    name: str
    modes: Mapping[Mode, ModePlan]
    members: tuple[Member, ...] = ()
    path: str | None = None
    mask: str | None = None
    match: Match | None = None
    exclude: tuple[str, ...] = ()
    fallback: str
    own: bool
    reason: str

    @property
    def key(self) -> str:
        """The row as it is typed: `kernels.X`, `inherited.X`, `fusions.X` or `attention.X`."""
        return f"{self.node if self.own else 'inherited'}.{self.name}"

    @property
    def title(self) -> str:
        """The row as it is called among all others: a kernel's by its name alone, any other with its node."""
        return self.name if self.node == "kernels" else self.key

    def taken(self) -> dict[str, Any]:
        """Return what the row takes of a model, beside what its name says, as plain data."""
        return {
            "match": self.match.to_dict() if self.match else None,
            "exclude": list(self.exclude),
            "members": [[member.name, member.path] for member in self.members],
            "path": self.path,
            "mask": self.mask,
        }

    def kernels(self) -> set[Kernel]:
        """Return every distinct kernel that some mode may run."""
        choices = (choice for mode in self.modes.values() for choice in mode.choices)
        return {choice.kernel for choice in choices if not choice.original}

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "node": self.node,
            "own": self.own,
            "reason": self.reason,
            "fallback": self.fallback,
            **self.taken(),
            "modes": {mode.value: found.to_dict() for mode, found in self.modes.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], files: Mapping[str, tuple[File, ...]] = MappingProxyType({})) -> Step:
        """Build a step of the right kind from plain data; `files` are those of each digest."""
        said = {Mode(mode): ModePlan.from_dict(found, files) for mode, found in data["modes"].items()}
        modes = {mode: said[mode] for mode in Mode if mode in said}  # a file has its keys sorted
        return _KINDS[data["kind"]](
            node=data["node"],
            name=data["name"],
            modes=modes,
            members=tuple(Member(name=name, path=path) for name, path in data["members"]),
            path=data["path"],
            mask=data["mask"],
            match=Match.from_dict(data["match"]) if data["match"] else None,
            exclude=tuple(data["exclude"]),
            fallback=data["fallback"],
            own=data["own"],
            reason=data["reason"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind(Step):
    """Some mode of this name runs a kernel."""

    kind: ClassVar[str] = "bind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse(Step):
    """In some mode the `members`, which stand beside each other in a model, become one kernel."""

    kind: ClassVar[str] = "fuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend(Step):
    """In some mode the attention of the parts that `path` matches, or of the whole model, runs a kernel."""

    kind: ClassVar[str] = "attend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Step):
    """Every mode of this name runs the original."""

    kind: ClassVar[str] = "keep"


_KINDS: dict[str, type[Step]] = {cls.kind: cls for cls in (Bind, Fuse, Attend, Keep)}
