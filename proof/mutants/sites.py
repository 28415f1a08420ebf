"""Places in a source file that can be broken, and the text of each break. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

import msgspec

__all__ = ["Site", "cut_block", "find_sites"]


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One place, and what stands there after the break."""

    kind: str
    line: int
    """Counted from 1."""
    covered_by: tuple[int, int]
    """Tests that run one of these lines may notice the break: first and last."""
    start: int
    """Where the text begins that is replaced, and where it ends: positions in the file's UTF-8."""
    end: int
    new: str


def cut_block(text: str, site: Site) -> tuple[str, str] | None:
    """Return the lines around a site that occur once in the file, and the same lines after the break."""
    data = text.encode()
    start, end = data.rfind(b"\n", 0, site.start) + 1, _find_line_end(data, site.end)
    while data.count(data[start:end]) != 1:
        if start == 0 and end == len(data):
            return None
        start, end = data.rfind(b"\n", 0, max(0, start - 1)) + 1, _find_line_end(data, end)
    changed = data[start : site.start] + site.new.encode() + data[site.end : end]
    return data[start:end].decode(), changed.decode()


def _find_line_end(data: bytes, position: int) -> int:
    return data.find(b"\n", position) + 1 or len(data)


def find_sites(file: str, text: str) -> list[Site]:
    """List the places of a file, in order. A file of another kind than Python and SQL has none."""
    if file.endswith(".py"):
        return list(_PythonSites(text).find())
    return list(_find_in_sql(text)) if file.endswith(".sql") else []


# --- Python ---

_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_LOUD: Final = frozenset({"debug", "info", "warning", "error", "exception", "echo", "secho"})
"""Calls that only write a line for people."""
_LOOSE: Final = (ast.NamedExpr, ast.IfExp, ast.BoolOp, ast.Lambda, ast.Compare, ast.UnaryOp)
"""Need parentheses beside another operator."""


class _PythonSites:
    def __init__(self, text: str) -> None:
        self._source = _Source(text)
        self._tree = ast.parse(text)

    def find(self) -> Iterator[Site]:
        yield from self._find_in_body(self._tree.body, function=None)

    def _find_in_body(self, body: list[ast.stmt], function: ast.stmt | None) -> Iterator[Site]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                if not _is_protocol(statement):
                    yield from self._find_in_body(statement.body, function)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._find_in_function(statement)

    def _find_in_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Site]:
        names = {_name(decorator) for decorator in function.decorator_list}
        if names & {"overload", "abstractmethod"} or function.name in ("__repr__", "__str__"):
            return
        yield from self._find_defaults(function)
        for statement in function.body:
            yield from self._find_in_statement(statement, is_only=len(function.body) == 1)

    def _find_defaults(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Site]:
        whole = (function.body[0].lineno, function.end_lineno or function.lineno)
        for default in (*function.args.defaults, *function.args.kw_defaults):
            if default is not None and (new := _change_constant(default)) is not None:
                yield from self._make("a default is changed", default, new, covered_by=whole)

    def _find_in_statement(self, statement: ast.stmt, *, is_only: bool) -> Iterator[Site]:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._find_in_function(statement)
            return
        if isinstance(statement, ast.ClassDef | ast.Assert | ast.Import | ast.ImportFrom | ast.Match):
            return
        if _is_loud(statement) or _is_docstring(statement):
            return
        if isinstance(statement, ast.Expr | ast.AugAssign | ast.Delete) or _assigns_to_part(statement):
            yield from self._make("a statement is dropped", statement, "pass")
        if isinstance(statement, ast.Continue | ast.Break):
            yield from self._make("a jump is dropped", statement, "pass")
        if isinstance(statement, ast.Raise) and not is_only:
            yield from self._make("an error is not raised", statement, "pass")
        if isinstance(statement, ast.If | ast.While) and not isinstance(statement.test, ast.Constant):
            kinds = ("True", "False") if isinstance(statement, ast.If) else ("False",)
            for value in kinds:
                yield from self._make(f"a condition is always {value}", statement.test, value)
        for field, value in ast.iter_fields(statement):
            if field in ("annotation", "returns", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                yield from self._find_in_child(child)

    def _find_in_child(self, child: object) -> Iterator[Site]:
        if isinstance(child, ast.stmt):
            yield from self._find_in_statement(child, is_only=False)
        elif isinstance(child, ast.expr):
            yield from self._find_in_expression(child)
        elif isinstance(child, ast.ExceptHandler):
            for statement in child.body:
                yield from self._find_in_statement(statement, is_only=False)
        elif isinstance(child, ast.withitem):
            yield from self._find_in_expression(child.context_expr)

    def _find_in_expression(self, expression: ast.expr) -> Iterator[Site]:
        for node in ast.walk(expression):
            match node:
                case ast.Compare(ops=[operator], left=left, comparators=[right]) if type(operator) in _COMPARISONS:
                    new = f"{self._source.get(left)} {_COMPARISONS[type(operator)]} {self._source.get(right)}"
                    yield from self._make("a comparison is changed", node, new)
                case ast.BoolOp(op=operator, values=[first, second]):
                    word = "or" if isinstance(operator, ast.And) else "and"
                    new = f"{self._source.get(first)} {word} {self._source.get(second)}"
                    yield from self._make("and, or are exchanged", node, new)
                case ast.UnaryOp(op=ast.Not(), operand=operand):
                    yield from self._make("a not is dropped", node, f"bool({self._source.get(operand)})")
                case ast.IfExp(test=test):
                    yield from self._make("a condition is always True", test, "True")
                    yield from self._make("a condition is always False", test, "False")
                case ast.BinOp(op=ast.Add() | ast.Sub() as operator, left=left, right=right):
                    word = "-" if isinstance(operator, ast.Add) else "+"
                    if not _is_text(left) and not _is_text(right):
                        new = f"{self._source.get(left)} {word} ({self._source.get(right)})"
                        yield from self._make("a sign is changed", node, new)
                case ast.Constant(value=int(value)) if not isinstance(value, bool):
                    yield from self._make("a number is off by one", node, str(value + 1))
                case ast.Call(args=[ast.Name() | ast.Attribute() as one, ast.Name() | ast.Attribute() as other]):
                    if self._source.get(one) != self._source.get(other):
                        swapped = f"{self._source.get(other)}, {self._source.get(one)}"
                        yield from self._make("two arguments are swapped", one, swapped, until=other)
                case ast.Call(keywords=[*_, ast.keyword(arg=str(), value=ast.Constant(value=bool(value)) as word)]):
                    yield from self._make("a flag is changed", word, str(not value))
                case _:
                    pass

    def _make(
        self,
        kind: str,
        node: ast.expr | ast.stmt,
        new: str,
        *,
        until: ast.expr | None = None,
        covered_by: tuple[int, int] | None = None,
    ) -> Iterator[Site]:
        start, end = self._source.locate(node)[0], self._source.locate(until or node)[1]
        lines = covered_by or (node.lineno, node.lineno)
        yield Site(kind=kind, line=node.lineno, covered_by=lines, start=start, end=end, new=new)


class _Source:
    """Text by the positions of its nodes, which count bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._starts = [0]
        for line in self._data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def get(self, node: ast.expr) -> str:
        start, end = self.locate(node)
        text = self._data[start:end].decode()
        return f"({text})" if isinstance(node, _LOOSE) else text

    def locate(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self._starts[node.lineno - 1], self._starts[node.end_lineno - 1]
        return start + node.col_offset, end + node.end_col_offset


def _is_protocol(statement: ast.ClassDef) -> bool:
    return any(_name(parent) in ("Protocol", "TypedDict") for parent in statement.bases)


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _name(inner)
    return ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_loud(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    call = call.value if isinstance(call, ast.Await) else call
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _LOUD


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _assigns_to_part(statement: ast.stmt) -> bool:
    """A name would be missing later; an attribute or an item keeps its value of before."""
    return isinstance(statement, ast.Assign) and all(
        isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets
    )


def _change_constant(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int(value) | float(value)):
            return str(value + 1)
    return None


# --- SQL ---

_LOCK: Final = re.compile(r"\bfor (?:no key )?(?:update|share)(?: of \w+)?(?: skip locked| nowait)?", re.IGNORECASE)
_SKIP: Final = re.compile(r" skip locked\b", re.IGNORECASE)
_CONDITION: Final = re.compile(r"^\s*(?:and|or) .*[^(,]$", re.IGNORECASE)
_SIGN: Final = re.compile(r"(?<=\s)(?:<=|>=|<|>)(?=\s)")
_FLIPPED: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def _find_in_sql(text: str) -> Iterator[Site]:
    position = 0
    for number, line in enumerate(text.encode().splitlines(keepends=True), start=1):
        code = line.decode().partition("--")[0].rstrip()
        changes: list[tuple[str, str]] = []
        if _CONDITION.match(code) and code.count("(") == code.count(")"):
            changes.append(("a condition of WHERE is dropped", ""))
        if _SKIP.search(code):
            changes.append(("a lock waits", _SKIP.sub("", code)))
        if _LOCK.search(code):
            changes.append(("a lock is dropped", _LOCK.sub("", code)))
        if sign := _SIGN.search(code):
            changes.append(("a comparison is changed", code[: sign.start()] + _FLIPPED[sign[0]] + code[sign.end() :]))
        for kind, new in changes:
            end = position + len(code.encode())
            yield Site(kind=kind, line=number, covered_by=(number, number), start=position, end=end, new=new)
        position += len(line)
