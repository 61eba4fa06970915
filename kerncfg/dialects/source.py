"""What a Python source says of kernels: `KernelConfig`, mappings of `kernels`, and calls of Liger.

The file is parsed and never run. Only what is written out in it is read; each other part is remarked upon.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerncfg.dialects.kernel_config import from_kernel_config
from kerncfg.dialects.liger import FLAGS, check_flags, from_liger
from kerncfg.dialects.literals import NotLiteral, Source, name_of
from kerncfg.dialects.translation import Translation
from kerncfg.documents.config import Origin
from kerncfg.documents.plain import DEEP
from kerncfg.errors import ConfigError, Issue

__all__ = ["read_source"]

_MAPPINGS = ("register_kernel_mapping", "use_kernel_mapping")
_LOADS = ("from_pretrained", "from_config")
_LOADING = ("use_kernels", "kernel_config", "attn_implementation", "allow_all_kernels")
_LIGER = "apply_liger_kernel_to_"
_AUTO = "AutoLigerKernelForCausalLM"
_TRAINING = ("use_liger_kernel", "liger_kernel_config")


def read_source(path: Path, line: int | None = None) -> Translation:
    """Return what the one place in a file that sets kernels up means; `line` says which, where there are several.

    Raises:
        ConfigError: The file is no Python, sets nothing up or several things, or says no kernels.
    """
    try:
        source = Source(ast.parse(path.read_bytes(), filename=str(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last is what the parser says of depth
        deep = isinstance(error, RecursionError | MemoryError)
        why = DEEP if deep else getattr(error, "msg", None) or " ".join(str(error).split())
        raise ConfigError(
            [Issue(message=f"not Python: {why}", file=str(path), line=getattr(error, "lineno", None))]
        ) from error
    reader = _Reader(source, str(path))
    found = list(reader.places())
    if line is not None:
        found = [call for call in found if call.lineno <= line <= (call.end_lineno or call.lineno)] or found
        found = found if len(found) == 1 else [call for call in found if call.lineno == line]
    if len(found) != 1:
        raise _not_one(path, found, line)
    return reader.read(found[0])


def _not_one(path: Path, found: list[ast.Call], line: int | None) -> ConfigError:
    if not found:
        where = "" if line is None else f" at line {line}"
        hint = "import reads KernelConfig(…), from_pretrained(…, attn_implementation=…) and Liger's calls"
        return ConfigError([Issue(message=f"sets up no kernels{where}", file=str(path), hint=hint)])
    lines = ", ".join(str(call.lineno) for call in found)
    hint = f"say which: {path}:{found[0].lineno}"
    return ConfigError(
        [Issue(message=f"sets up kernels in {len(found)} places: lines {lines}", file=str(path), hint=hint)]
    )


class _Reader:
    """Reads one place of a source and gathers what is not written out on the way."""

    def __init__(self, source: Source, file: str) -> None:
        self.source = source
        self.file = file
        self.remarks: list[Issue] = []

    def places(self) -> Iterator[ast.Call]:
        """Yield each call that sets kernels up; the parts of one set-up count once."""
        calls = list(self.source.calls())
        loads = [call for call in calls if name_of(call.func) in _LOADS and _words(call, _LOADING)]
        used = [self.config_of(call) for call in loads]
        for call in calls:
            name = name_of(call.func)
            config = name == "KernelConfig" and not any(call is one for one in used)
            liger = (
                _is_auto(call)
                or name.startswith((_LIGER, f"_{_LIGER.removesuffix('_to_')}"))
                or bool(_words(call, _TRAINING))
            )
            if config or liger or call in loads or name in _MAPPINGS:
                yield call

    def read(self, call: ast.Call) -> Translation:
        """Return what one set-up means."""
        name = name_of(call.func)
        origin = Origin(kind="file", place=self.file, line=call.lineno)
        if _is_auto(call):
            found = self.liger(call, origin)
        elif name in _LOADS:
            found = Translation(document=self.loading(call), origin=origin)
        elif name == "KernelConfig" or name in _MAPPINGS:
            found = Translation(document=self.config(call), origin=origin)
        else:
            found = self.liger(call, origin)
        if (found.document.get("trust") or {}).get("allow_all_kernels"):
            message = "allow_all_kernels=True lets the code of every publisher run"
            hint = "name those that you mean: trust.publishers.ORG=true"
            self.remarks.append(Issue(message=message, hint=hint, file=self.file, line=call.lineno))
        return replace(found, remarks=(*self.remarks, *found.remarks))

    def loading(self, call: ast.Call) -> dict[str, Any]:
        """Read what `from_pretrained` says of kernels."""
        words = {word.arg: word.value for word in call.keywords}
        config = self.config_of(call)
        attention = self.literal(words.get("attn_implementation"), "attn_implementation")
        asked = self.literal(words.get("use_kernels"), "use_kernels")
        document = self.config(config) if config else from_kernel_config({}, inherit_mapping=bool(asked))
        if attention is not None:
            document |= {"attention": from_kernel_config(attn_implementation=attention)["attention"]}
        if words.get("kernel_config") is not None and config is None:
            self.remark(words["kernel_config"], "kernel_config", "it is no KernelConfig of this file")
        if self.literal(words.get("allow_all_kernels"), "allow_all_kernels"):
            document["trust"] = {"allow_all_kernels": True}
        return document

    def config_of(self, call: ast.Call) -> ast.Call | None:
        """Return the `KernelConfig(…)` that a call is given, by itself or by a name."""
        value = next((word.value for word in call.keywords if word.arg == "kernel_config"), None)
        try:
            value = value and self.source.followed(value)
        except NotLiteral:
            return None
        return value if isinstance(value, ast.Call) and name_of(value.func) == "KernelConfig" else None

    def config(self, call: ast.Call) -> dict[str, Any]:
        """Read `KernelConfig(…)`, or a call that registers a mapping."""
        names = ("kernel_mapping", "use_local_kernel", "inherit_mapping")
        if name_of(call.func) in _MAPPINGS:
            names = ("mapping", "inherit_mapping", "")
        words: dict[str | None, ast.expr] = dict(zip(names, call.args, strict=False))
        words |= {word.arg: word.value for word in call.keywords}
        inherit = self.literal(words.get("inherit_mapping"), "inherit_mapping")
        local = self.literal(words.get("use_local_kernel"), "use_local_kernel")
        mapping = self.mapping(words.get(names[0]), names[0])
        try:
            return from_kernel_config(mapping, inherit_mapping=inherit is not False, use_local_kernel=bool(local))
        except ConfigError as error:
            placed = [replace(issue, file=self.file, line=call.lineno) for issue in error.issues]
            raise ConfigError(placed) from error

    def mapping(self, node: ast.expr | None, name: str) -> dict[Any, Any]:
        """Read a mapping entry by entry, so that one that is computed does not take the others with it."""
        try:
            node = node and self.source.followed(node)
            if not isinstance(node, ast.Dict):
                found: dict[Any, Any] = {} if node is None else self.source.value(node)
                return found
            entries = list(self.source.entries(node))
        except NotLiteral as reason:
            self.remark(reason.node, name, reason.why)
            return {}
        read: dict[Any, Any] = {}
        for key, value in entries:
            try:
                read[self.source.key(key)] = self.source.value(value)
            except NotLiteral as reason:
                self.remark(reason.node, f"{name}[{ast.unparse(key)}]", reason.why)
        return read

    def liger(self, call: ast.Call, origin: Origin) -> Translation:
        """Read a call of Liger's, or training arguments that switch it on."""
        words = {word.arg: word.value for word in call.keywords if word.arg}
        name = name_of(call.func)
        model = name.partition(_LIGER)[2] or None
        if _words(call, _TRAINING):
            if self.literal(words.get("use_liger_kernel"), "use_liger_kernel") is False:
                return Translation(document={"kernels": {}}, origin=origin)
            flags = self.mapping(words.get("liger_kernel_config"), "liger_kernel_config")
        else:
            if _is_auto(call):  # what is no flag of Liger's is the model's own
                words = {word: value for word, value in words.items() if word in FLAGS}
            for unpacked in (word.value for word in call.keywords if word.arg is None):
                words |= self.unpacked(unpacked)
            flags = {flag: self.literal(value, flag) for flag, value in words.items() if flag not in _NO_FLAGS}
            for value in () if _is_auto(call) else call.args[1 if model is None else 0 :]:
                self.remark(value, "a flag without its name", f"it is {ast.unparse(value)!r}")
            first = call.args[0] if call.args and model is None and not _is_auto(call) else None
            said = words.get("model_type", first)
            model = model or self.literal(said, "model_type")
        check_flags(flags)
        return from_liger({flag: on for flag, on in flags.items() if on is not None}, model_type=model, origin=origin)

    def unpacked(self, node: ast.expr) -> dict[str, ast.expr]:
        """Read the names in a map that is unpacked into a call, each with its value."""
        try:
            found = self.source.followed(node)
            if not isinstance(found, ast.Dict):
                raise NotLiteral(node, f"it unpacks {ast.unparse(node)!r}")
            return {str(self.source.key(key)): value for key, value in self.source.entries(found)}
        except NotLiteral as reason:
            self.remark(reason.node, f"**{ast.unparse(node)}", reason.why)
            return {}

    def literal(self, node: ast.expr | None, name: str) -> Any:
        """Return a value that is written out; anything else is remarked upon and says nothing."""
        if node is None:
            return None
        try:
            return self.source.value(node)
        except NotLiteral as reason:
            return self.remark(reason.node, name, reason.why)

    def remark(self, node: ast.AST, name: str, why: str) -> None:
        """Keep what cannot be read."""
        line = getattr(node, "lineno", None)
        hint = "write it into the imported file"
        message = f"{name} is not written out: {why}"
        self.remarks.append(Issue(message=message, file=self.file, line=line, hint=hint))


_NO_FLAGS = ("model", "model_type")


def _is_auto(call: ast.Call) -> bool:
    """Say whether a call loads a model of Liger's own, whose kind only its files say."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return name_of(call.func) in _LOADS and owner is not None and name_of(owner) == _AUTO


def _words(call: ast.Call, names: tuple[str, ...]) -> Mapping[str | None, ast.expr]:
    return {word.arg: word.value for word in call.keywords if word.arg in names}
