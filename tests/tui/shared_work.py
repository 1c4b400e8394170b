"""Hundreds of apps start in one process, all of the same classes with the same styles. What Textual computes from these
alone is computed once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from textual.css.model import RuleSet, SelectorSet
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.css.types import Specificity3
from textual.dom import DOMNode
from textual.message import Message
from textual.message_pump import MessagePump

Handlers = Iterable[tuple[type, Callable[[Message], Awaitable[Any]]]]


def share_all() -> None:
    """For all apps of this process."""
    share_parsed_styles()
    share_matched_rules()
    leave_equal_styles()
    share_handlers()


def share_parsed_styles() -> None:
    """Each text is parsed once for the same variables. Rules are looked up by identity, as they are anyway, but without
    a Python call for each."""
    parsed: dict[tuple[object, ...], list[RuleSet]] = {}
    parse = Stylesheet._parse_rules

    def parse_once(self: Stylesheet, *args: object, **named: object) -> list[RuleSet]:
        key = (args, tuple(sorted(named.items())), tuple(self._variables.items()))
        if key not in parsed:
            parsed[key] = parse(self, *args, **named)  # type: ignore[arg-type]
        return parsed[key]

    Stylesheet._parse_rules = parse_once  # type: ignore[method-assign]
    RuleSet.__hash__ = object.__hash__  # type: ignore[method-assign]


def share_matched_rules() -> None:
    """Whether a rule may be for a widget follows from the classes and names on the way to it. Only then are
    pseudo-classes asked for, which come and go."""
    check = Stylesheet._check_rule
    numbers: dict[tuple[object, ...], int] = {}
    matched: dict[tuple[RuleSet, int], list[Specificity3]] = {}
    bare: dict[RuleSet, RuleSet] = {}
    last: tuple[list[DOMNode], int] = ([], 0)  # Textual asks with the same list for each rule

    def check_once(rule: RuleSet, path: list[DOMNode]) -> Iterable[Specificity3]:
        nonlocal last
        if last[0] is not path:
            names = tuple((node.__class__, node.id, frozenset(node._classes)) for node in path)
            last = path, numbers.setdefault(names, len(numbers))
        key = rule, last[1]
        if key not in matched:
            if rule not in bare:
                bare[rule] = without_pseudo_classes(rule) if rule.pseudo_classes else rule
            matched[key] = list(check(bare[rule], path))
        return check(rule, path) if rule.pseudo_classes and matched[key] else matched[key]

    Stylesheet._check_rule = staticmethod(check_once)  # type: ignore[method-assign, assignment]


def without_pseudo_classes(rule: RuleSet) -> RuleSet:
    return RuleSet(
        [
            SelectorSet([replace(one, pseudo_classes=set()) for one in selectors.selectors], selectors.specificity)
            for selectors in rule.selector_set
        ]
    )


def leave_equal_styles() -> None:
    """A screen that comes back has all its widgets styled again, mostly as they are: in Textual rule by rule."""
    put = Stylesheet.replace_rules
    given: WeakKeyDictionary[DOMNode, tuple[RulesMap, int]] = WeakKeyDictionary()

    def put_changed(node: DOMNode, rules: RulesMap, animate: bool = False) -> None:
        base = node.styles.base
        if given.get(node) == (rules, base._updates):
            node.notify_style_update()
            return
        put(node, rules, animate)
        given[node] = rules, base._updates

    Stylesheet.replace_rules = staticmethod(put_changed)  # type: ignore[method-assign]


def share_handlers() -> None:
    """The classes of a widget that handle a message, without those that do so by a decorator. Which function it is may
    change, as when a test puts another one in its place."""
    find = MessagePump._get_dispatch_methods
    known: dict[tuple[type, str, type], list[type] | None] = {}

    def classes_with(cls: type, name: str, message: type) -> list[type] | None:
        if any(
            one in decorated
            for base in cls.__mro__
            if (decorated := base.__dict__.get("_decorated_handlers"))
            for one in message.__mro__
        ):
            return None
        return [base for base in cls.__mro__ if f"_{name}" in base.__dict__ or name in base.__dict__]

    def find_once(self: MessagePump, name: str, message: Message) -> Handlers:
        key = self.__class__, name, message.__class__
        if key not in known:
            known[key] = classes_with(*key)
        classes = known[key]
        if classes is None:
            yield from find(self, name, message)
            return
        for cls in classes:
            if message._no_default_action:
                break
            method = cls.__dict__.get(f"_{name}") or cls.__dict__.get(name)
            if method is not None and not getattr(method, "_textual_on", None):
                yield cls, method.__get__(self, cls)

    MessagePump._get_dispatch_methods = find_once  # type: ignore[method-assign, assignment]
