"""The values that a Python source writes out, read without running any of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

__all__ = ["NotLiteral", "Source", "name_of"]

_CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove"}
_REPOSITORIES = ("LayerRepository", "FuncRepository")
_LOCAL_REPOSITORIES = ("LocalLayerRepository", "LocalFuncRepository")
_PROPERTIES = ("CUDAProperties", "ROCMProperties")
_UNBOUNDED = 10**9  # what `sys.maxsize` says of a capability


class NotLiteral(Exception):
    """A value is not written out in the source; `node` is the part that is not."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node = node
        self.why = why


class Source:
    """The syntax tree of one file, with what each name in it is assigned."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.scopes: dict[ast.AST, ast.AST] = {}
        self._enter(tree, tree)

    def _enter(self, node: ast.AST, scope: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.scopes[child] = scope
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
            self._enter(child, child if inner else scope)

    def calls(self) -> Iterator[ast.Call]:
        """Yield every call, in the order of the file."""
        found = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def value(self, node: ast.expr) -> Any:
        """Return the value that an expression writes out.

        Raises:
            NotLiteral: It is computed, or a name that is assigned more than once or changed.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple | ast.List):
            items = [self.value(item) for item in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        if isinstance(node, ast.Dict):
            return {self.key(key): self.value(value) for key, value in self.entries(node)}
        if isinstance(node, ast.Name):
            return self.value(self.followed(node))
        if isinstance(node, ast.BinOp):
            return self.combined(node)
        if isinstance(node, ast.Attribute) and name_of(node.value) == "Mode":
            return node.attr
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.maxsize":
            return _UNBOUNDED
        if isinstance(node, ast.Call):
            return self.made(node)
        raise NotLiteral(node, f"it is computed by {ast.unparse(node)!r}")

    def entries(self, node: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yield the entries of a map that is written out, those of maps unpacked into it among them."""
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield key, value
                continue
            inner = self.followed(value)
            if not isinstance(inner, ast.Dict):
                raise NotLiteral(value, f"it unpacks {ast.unparse(value)!r}")
            yield from self.entries(inner)

    def key(self, node: ast.expr) -> Any:
        """Return a key of a map that is written out."""
        found = self.value(node)
        return tuple(map(tuple, found)) if isinstance(found, tuple) and all(map(_listed, found)) else found

    def combined(self, node: ast.BinOp) -> Any:
        """Return texts that are put together, or modes."""
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add | ast.BitOr):
            return left + right if isinstance(node.op, ast.Add) else f"{left}|{right}"
        raise NotLiteral(node, f"it is computed by {ast.unparse(node)!r}")

    def made(self, node: ast.Call) -> Any:
        """Return what a call of a class that only holds values says."""
        name = name_of(node.func)
        positional = [self.value(argument) for argument in node.args]
        said = {word.arg: self.value(word.value) for word in node.keywords if word.arg}
        if name in ("Path", "str") and len(positional) == 1 and isinstance(positional[0], str):
            return positional[0]
        if name == "dict" and not positional:
            return said
        if name in _REPOSITORIES:
            text = f"{said.pop('repo_id', next(iter(positional), ''))}:{_name(said)}"
            return (text, {key: value for key, value in said.items() if key in _METADATA})
        if name in _LOCAL_REPOSITORIES:
            return f"{said.pop('repo_path', next(iter(positional), ''))}:{_name(said)}"
        if name == "Device":
            kind = said.get("type", next(iter(positional), ""))
            properties = said.get("properties", positional[1] if len(positional) > 1 else None)
            return kind if properties is None else _Device(type=kind, properties=properties)
        if name in _PROPERTIES:
            low, high = (*positional, 0, 0)[:2]
            bounds = {"min_capability": low, "max_capability": high, **said}
            return SimpleNamespace(**bounds)
        raise NotLiteral(node, f"it is computed by {ast.unparse(node.func)}(…)")

    def followed(self, node: ast.expr) -> ast.expr:
        """Return what an expression stands for, however many names lead there."""
        seen: list[ast.expr] = []
        while isinstance(node, ast.Name):
            if node in seen:
                raise NotLiteral(node, f"{node.id} is assigned to itself")
            seen.append(node)
            node = self.assigned(node)
        return node

    def assigned(self, node: ast.Name) -> ast.expr:
        """Return what a name is assigned: once, and nothing changes it."""
        scope: ast.AST = self.scopes.get(node, self.tree)
        while True:
            bound = [found for found in self._bindings(node.id) if self.scopes.get(found[0], self.tree) is scope]
            if bound or scope is self.tree:
                break
            scope = self.scopes.get(scope, self.tree)
        lines = ", ".join(str(line) for line in sorted({getattr(place, "lineno", 0) for place, _ in bound}))
        if len(bound) != 1:
            times = f"{len(bound)} times (lines {lines})" if bound else "nowhere in this file"
            raise NotLiteral(node, f"{node.id} is assigned {times}")
        (_, value), changed = bound[0], self._changed(node.id)
        if changed is not None:
            raise NotLiteral(node, f"{node.id} is changed at line {changed}")
        if value is None:
            raise NotLiteral(node, f"{node.id} is given from elsewhere at line {lines}")
        return value

    def _bindings(self, name: str) -> Iterator[tuple[ast.AST, ast.expr | None]]:
        """Yield each place where a name gets a value, with the value if it is an expression of its own."""
        plain: set[int] = set()
        for node in ast.walk(self.tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id == name and node.value is not None:
                        plain.add(id(target))
                        yield node, node.value
        for node in ast.walk(self.tree):
            stored = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store | ast.Del)
            given = isinstance(node, ast.arg) and node.arg == name
            imported = isinstance(node, ast.alias) and (node.asname or node.name).partition(".")[0] == name
            if (stored and id(node) not in plain) or given or imported:
                yield node, None

    def _changed(self, name: str) -> int | None:
        for node in ast.walk(self.tree):
            stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
            if isinstance(node, ast.Subscript | ast.Attribute) and (stored or getattr(node, "attr", "") in _CHANGES):
                inner = node.value
                if isinstance(inner, ast.Name) and inner.id == name:
                    return node.lineno
        return None


class _Device(SimpleNamespace):
    """A device with a range of capabilities; each stands for itself as a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


_METADATA = ("version", "revision", "trust_remote_code")


def _name(said: Mapping[str, Any]) -> Any:
    return said.get("layer_name") or said.get("func_name")


def _listed(part: Any) -> bool:
    return isinstance(part, list | tuple)


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name; nothing for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
