"""Whether a chat template may be rendered in the serving process: only if no value can grow beyond what it is given.

minijinja counts steps and the lengths of texts that a template makes, and ends it when they are too many. It does not
count lists and objects: a list may be repeated, or hold itself twice over, at no cost, until somebody writes it out,
and that takes gigabytes and minutes. A template is its author's program, so this is decided by its syntax, with a rule
that is stricter than needed: whatever makes lists or objects out of others must not be fed with its own results, and
only functions that are known are called. What breaks the rule is rendered in a child, whose time and memory the kernel
bounds. Of 41 templates of real models 3 break it.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from extproc.tokens.sandbox import template_environment

__all__ = ["find_growth"]

_FUNCTIONS = frozenset({"namespace", "range", "raise_exception", "strftime_now"})
_TEXT_FILTERS = frozenset(
    {"trim", "string", "tojson", "upper", "lower", "replace", "join", "capitalize", "title", "escape", "e", "safe"}
)
_FILTERS = _TEXT_FILTERS | {
    *("length", "count", "first", "last", "list", "items", "dictsort", "sort", "reverse", "unique", "default", "d"),
    *("map", "select", "reject", "selectattr", "rejectattr", "int", "float", "abs", "min", "max", "round", "indent"),
}
_TEXT_METHODS = frozenset(
    {"strip", "lstrip", "rstrip", "upper", "lower", "replace", "title", "capitalize", "removeprefix", "removesuffix"}
)
_METHODS = _TEXT_METHODS | {"split", "splitlines", "startswith", "endswith", "find", "items", "get", "keys", "values"}
_MOST_INDENT = 16

_Variable = tuple[str, str]  # a name, or a namespace's name and an attribute


def find_growth(text: str) -> str | None:
    """What may grow without bound in a template; None where nothing can."""
    try:
        tree = template_environment().parse(text)
    except TemplateError as error:
        return f"it is not parsed: {error}"
    return _Rule(tree).broken()


class _Rule:
    def __init__(self, tree: nodes.Template) -> None:
        self._tree = tree
        self._macros = {macro.name for macro in tree.find_all(nodes.Macro)}
        self._assigned: dict[_Variable, list[nodes.Node]] = {}
        self._namespaces: set[str] = set()
        self._named: set[int] = set()  # their calls, by identity
        # Names with values that are not looked into: of loops, parameters, blocks.
        self._bound = {"varargs", "kwargs", "caller"}
        self._collect()
        self._texts = self._find_texts()
        self._objects = {id(access.node) for access in tree.find_all(nodes.Getattr)}

    def broken(self) -> str | None:
        for node in self._tree.find_all(nodes.Node):
            reason = self._look_at(node)
            if reason is not None:
                return f"line {node.lineno}: {reason}"
        return None

    def _collect(self) -> None:
        for assign in self._tree.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.NSRef):
                self._assigned.setdefault((target.name, target.attr), []).append(assign.node)
            elif isinstance(target, nodes.Name):
                self._assigned.setdefault((target.name, ""), []).append(assign.node)
                if _is_namespace(assign.node):
                    self._namespaces.add(target.name)
                    self._named.add(id(assign.node))
                for attribute, value in _namespace_values(assign.node):
                    self._assigned.setdefault((target.name, attribute), []).append(value)
            else:
                self._bound.update(_names(target))
        for loop in self._tree.find_all(nodes.For):
            self._bound.update(_names(loop.target))
        for macro in self._tree.find_all(nodes.Macro):
            self._bound.update(name for argument in macro.args for name in _names(argument))
        for block in self._tree.find_all(nodes.CallBlock):
            self._bound.update(name for argument in block.args for name in _names(argument))
        for scope in self._tree.find_all(nodes.With):
            self._bound.update(name for target in scope.targets for name in _names(target))

    def _find_texts(self) -> set[_Variable]:
        """The variables that only ever hold texts or numbers, each value taken to be one until another is found."""
        texts = {variable for variable in self._assigned if variable[0] not in self._bound}
        while True:
            self._texts = texts
            kept = {variable for variable in texts if all(map(self._is_scalar, self._assigned[variable]))}
            if kept == texts:
                return texts
            texts = kept

    def _look_at(self, node: nodes.Node) -> str | None:
        if isinstance(node, nodes.Name) and node.ctx == "load" and node.name in self._namespaces:
            return None if id(node) in self._objects else "a namespace as a value"
        if isinstance(node, nodes.Mul):
            return None if self._is_scalar(node) else "a repetition of what may be a list"
        if isinstance(node, nodes.Add):
            known = self._is_scalar(node) or self._is_given(node) or self._appends(node)
            return None if known else "a sum of what may be lists"
        if isinstance(node, nodes.Tuple) and node.ctx == "store":
            return None
        if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
            return None if self._is_given(node) else "a list or object of values that the template has made"
        if isinstance(node, nodes.Filter):
            return self._look_at_filter(node)
        if isinstance(node, nodes.Call):
            return self._look_at_call(node)
        if isinstance(node, nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends | nodes.FilterBlock):
            return "another template or a filter of a block"
        return None

    def _look_at_filter(self, node: nodes.Filter) -> str | None:
        if node.name not in _FILTERS:
            return f"the filter {node.name}"
        if node.name == "map" and node.args:
            names = [each.value for each in node.args if isinstance(each, nodes.Const)]
            if len(names) != 1 or len(node.args) != 1 or names[0] not in _FILTERS:
                return "the filter map with another one that is not known"
        if node.name in ("tojson", "indent") and not all(
            isinstance(value, nodes.Const) and (not isinstance(value.value, int) or value.value <= _MOST_INDENT)
            for value in [*node.args, *(each.value for each in node.kwargs)]
            if not isinstance(value, nodes.Tuple)
        ):
            return f"the filter {node.name} with a width that is not written out"
        return None

    def _look_at_call(self, node: nodes.Call) -> str | None:
        called = node.node
        if isinstance(called, nodes.Getattr):
            return None if called.attr in _METHODS else f"the method {called.attr}"
        if isinstance(called, nodes.ExtensionAttribute):
            return None
        if not isinstance(called, nodes.Name) or (called.name, "") in self._assigned or called.name in self._bound:
            return "a call of a value"
        if called.name == "namespace" and id(node) not in self._named:
            return "a namespace without a name"
        if called.name == "strftime_now" and not all(isinstance(each, nodes.Const) for each in node.args):
            return "a format of dates that is not written out"
        return None if called.name in _FUNCTIONS or called.name in self._macros else f"the function {called.name}"

    def _is_scalar(self, node: nodes.Node) -> bool:
        """Surely a text, a number, a truth value or none: minijinja counts the length of texts that are made of it."""
        if isinstance(node, nodes.Const | nodes.TemplateData | nodes.Concat | nodes.Compare | nodes.Not | nodes.Test):
            return True
        if isinstance(node, nodes.Add | nodes.Mul):
            # A list and a text have no sum; a list times a number is a list.
            one, other = self._is_scalar(node.left), self._is_scalar(node.right)
            return one or other if isinstance(node, nodes.Add) else (one and other) or _is_text(node)
        if isinstance(node, nodes.Filter):
            return node.name in _TEXT_FILTERS or node.name in ("length", "count", "int", "float")
        if isinstance(node, nodes.Call):
            called = node.node
            if isinstance(called, nodes.Getattr):
                return called.attr in _TEXT_METHODS or called.attr in ("startswith", "endswith", "find")
            return isinstance(called, nodes.Name) and called.name in self._macros
        if isinstance(node, nodes.CondExpr):
            return self._is_scalar(node.expr1) and (node.expr2 is None or self._is_scalar(node.expr2))
        if isinstance(node, nodes.And | nodes.Or):
            return self._is_scalar(node.left) and self._is_scalar(node.right)
        variable = _variable(node)
        return variable is not None and variable in self._texts

    def _appends(self, node: nodes.Add) -> bool:
        """Adds a few texts to a list: each step counts."""
        more = node.right
        return isinstance(more, nodes.List) and all(map(self._is_scalar, more.items))

    def _is_given(self, node: nodes.Node) -> bool:
        """Made only of what is written out, of what the conversation brings, and of texts."""
        if self._is_scalar(node):
            return True
        variable = _variable(node)
        if variable is not None and (variable in self._assigned or variable[0] in self._bound):
            return False
        if isinstance(node, nodes.Name):
            return (node.name, "") not in self._assigned and node.name not in self._bound
        return all(self._is_given(child) for child in node.iter_child_nodes())


def _is_namespace(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "namespace"


def _is_text(node: nodes.Mul) -> bool:
    return any(isinstance(side, nodes.Const) and isinstance(side.value, str) for side in (node.left, node.right))


def _variable(node: nodes.Node) -> _Variable | None:
    if isinstance(node, nodes.Name):
        return node.name, ""
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return node.node.name, node.attr
    return None


def _namespace_values(node: nodes.Node) -> Iterator[tuple[str, nodes.Node]]:
    if isinstance(node, nodes.Call) and _is_namespace(node):
        for keyword in node.kwargs:
            yield keyword.key, keyword.value


def _names(target: nodes.Node) -> Iterator[str]:
    if isinstance(target, nodes.Name):
        yield target.name
    for child in target.find_all(nodes.Name):
        yield child.name
