"""Expression: one size formula out of an inventory file, read safely and evaluated over numpy arrays.

The inventories (profiles/implementations) are data that users may write, so their formulas must not be
able to run code: the text is parsed, every node is checked against a short list, and what remains is
compiled once. `and`, `or`, `not`, comparisons and `x if c else y` work element by element, so that the
same formula sizes one layout or twenty thousand.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from seqplan.planner.errors import SeqplanError

MAX_LENGTH = 400
"""Longest formula accepted: bounds the depth of the parse tree too."""


def _ceil_div(numerator: Any, denominator: Any) -> Any:
    return -(-numerator // denominator)


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "min": (np.minimum, 2),
    "max": (np.maximum, 2),
    "ceil_div": (_ceil_div, 2),
}
_HELPERS: dict[str, Callable[..., Any]] = {
    "_and": np.logical_and,
    "_or": np.logical_or,
    "_not": np.logical_not,
    "_where": np.where,
}
_GLOBALS: dict[str, Any] = {
    "__builtins__": {},
    **_HELPERS,
    **{name: function for name, (function, _) in _FUNCTIONS.items()},
}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Expression:
    """A checked formula: `evaluate` gives its value for scalars or arrays of equal length."""

    def __init__(self, text: str, symbols: Collection[str]) -> None:
        if len(text) > MAX_LENGTH:
            raise SeqplanError(f"formula of {len(text)} characters", f"At most {MAX_LENGTH} are allowed.")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise SeqplanError(f"formula {text!r} cannot be read: {error}") from None
        self.text = text
        self.names = frozenset(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS
        )
        checked = ast.Expression(_Checker(text, symbols).visit(tree.body))
        self._code = compile(ast.fix_missing_locations(checked), "<inventory>", "eval")

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Value of the formula; `values` holds every symbol that it names."""
        return eval(self._code, _GLOBALS, values)  # only whitelisted nodes reach this line

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@lru_cache(maxsize=4096)
def compile_expression(text: str, symbols: frozenset[str]) -> Expression:
    """The checked formula of `text` over `symbols`, made once per text."""
    return Expression(text, symbols)


class _Checker(ast.NodeTransformer):
    """Lets the whitelisted nodes through, rewritten element-wise, and refuses every other one."""

    def __init__(self, text: str, symbols: Collection[str]) -> None:
        self.text = text
        self.symbols = symbols

    def generic_visit(self, node: ast.AST) -> ast.AST:
        raise self._refuse(f"{type(node).__name__} is not allowed")

    def _refuse(self, why: str) -> SeqplanError:
        return SeqplanError(
            f"formula {self.text!r}: {why}.",
            "Use numbers, the documented symbols, + - * / // %, comparisons, and, or, not, "
            "x if c else y, min, max and ceil_div.",
        )

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, int | float):
            raise self._refuse(f"{node.value!r} is not a number")
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.symbols:
            known = ", ".join(sorted(self.symbols))
            raise self._refuse(f"unknown symbol {node.id!r} (known: {known})")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if not isinstance(node.op, _ARITHMETIC):
            raise self._refuse(f"operator {type(node.op).__name__} is not allowed")
        return ast.BinOp(self.visit(node.left), node.op, self.visit(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _call("_not", operand)
        if isinstance(node.op, ast.USub | ast.UAdd):
            return ast.UnaryOp(node.op, operand)
        raise self._refuse(f"operator {type(node.op).__name__} is not allowed")

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        helper = "_and" if isinstance(node.op, ast.And) else "_or"
        first, *rest = (self.visit(value) for value in node.values)
        for value in rest:
            first = _call(helper, first, value)
        result: ast.AST = first
        return result

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) != 1 or not isinstance(node.ops[0], _COMPARISONS):
            raise self._refuse("one comparison of two values at a time")
        return ast.Compare(self.visit(node.left), node.ops, [self.visit(node.comparators[0])])

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return _call("_where", self.visit(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        known = _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if known is None or node.keywords or len(node.args) != known[1]:
            raise self._refuse("only min(x, y), max(x, y) and ceil_div(x, y) can be called")
        assert isinstance(node.func, ast.Name)
        return _call(node.func.id, *(self.visit(argument) for argument in node.args))


def _call(name: str, *arguments: Any) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
