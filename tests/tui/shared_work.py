"""Hundreds of apps start in one process, all of the same classes with the same styles. What Textual computes from these
alone is computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from textual.css.model import RuleSet, SelectorSet
from textual.css.styles import RulesMap
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode, NoScreen
from textual.message import Message
from textual.message_pump import MessagePump
from textual.reactive import Reactive
from textual.widget import AwaitMount, Widget

Handlers = Iterable[tuple[type, Callable[[Message], Awaitable[Any]]]]


def share_all() -> None:
    """For all apps of this process."""
    share_parsed_styles()
    leave_equal_styles()
    share_styles()
    share_handlers()
    read_at_once()
    await_mounts_in_turn()


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


@dataclass
class Matches:
    """What a stylesheet has for widgets of the same classes and names on the way to them."""

    in_some_states: list[RuleSet]  # rules that apply with certain pseudo-classes
    found: dict[object, tuple[RulesMap | None, dict[str, bool]]] = field(default_factory=dict)  # by those that apply


Path = tuple[tuple[type, str | None, frozenset[str]], ...]
NOTES = ("_has_hover_style", "_has_focus_within", "_has_order_style", "_has_odd_or_even")


def share_styles() -> None:
    """What rules come to for a widget follows from the classes and names on the way to it. Only rules with
    pseudo-classes, which come and go, are checked each time."""
    apply, put = Stylesheet.apply, Stylesheet.replace_rules
    shared: dict[tuple[tuple[RuleSet, ...], Path], Matches] = {}
    of_rules: dict[tuple[RuleSet, ...], dict[Path, Matches]] = {}
    of_sheet: WeakKeyDictionary[Stylesheet, tuple[list[RuleSet], dict[Path, Matches]]] = WeakKeyDictionary()
    bare: dict[RuleSet, RuleSet] = {}
    computed: dict[DOMNode, RulesMap | None] = {}

    def put_noted(node: DOMNode, rules: RulesMap, animate: bool = False) -> None:
        if node in computed:
            computed[node] = rules
        put(node, rules, animate)

    def matches(sheet: Stylesheet, node: DOMNode, path: list[DOMNode]) -> Matches:
        rules, known = of_sheet.get(sheet, (None, {}))
        if rules is not sheet.rules:
            of_sheet[sheet] = sheet.rules, (known := of_rules.setdefault(tuple(sheet.rules), {}))
        names = tuple((one.__class__, one._id, frozenset(one._classes)) for one in path)
        if names not in known:
            by_name = sheet.rules_map
            possible = {rule for name in by_name.keys() & node._selector_names for rule in by_name[name]}
            key = tuple(filter(possible.__contains__, sheet.rules)), names
            if key not in shared:
                some = [rule for rule in key[0] if rule.pseudo_classes]
                bare.update((rule, without_pseudo_classes(rule)) for rule in some if rule not in bare)
                shared[key] = Matches([rule for rule in some if any(sheet._check_rule(bare[rule], path))])
            known[names] = shared[key]
        return known[names]

    @wraps(apply)
    def apply_once(self: Stylesheet, node: DOMNode, *, animate: bool = False, cache: object = None) -> None:
        found = matches(self, node, path := node.css_path_nodes)
        state = tuple(tuple(self._check_rule(rule, path)) for rule in found.in_some_states)
        if state not in found.found:
            computed[node] = None
            apply(self, node, animate=animate)
            found.found[state] = computed.pop(node), {name: getattr(node, name) for name in NOTES}
            return
        rules, notes = found.found[state]
        vars(node).update(notes)
        if rules is not None:
            self.replace_rules(node, rules, animate)
        self._process_component_classes(node)

    Stylesheet.replace_rules = staticmethod(put_noted)  # type: ignore[method-assign]
    Stylesheet.apply = apply_once  # type: ignore[method-assign]


def without_pseudo_classes(rule: RuleSet) -> RuleSet:
    return RuleSet(
        [
            SelectorSet([replace(one, pseudo_classes=set()) for one in selectors.selectors], selectors.specificity)
            for selectors in rule.selector_set
        ]
    )


def leave_equal_styles() -> None:
    """A screen that comes back has all its widgets styled again, mostly as they are: in Textual rule by rule. The rules
    of a new widget are checked one by one once, and copied to all further ones: nothing else follows from them before
    it is mounted."""
    put = Stylesheet.replace_rules
    given: WeakKeyDictionary[DOMNode, tuple[RulesMap, int]] = WeakKeyDictionary()
    checked: dict[int, tuple[RulesMap, RulesMap]] = {}  # by the identity of the rules, which it keeps

    def put_changed(node: DOMNode, rules: RulesMap, animate: bool = False) -> None:
        base = node.styles.base
        if given.get(node) == (rules, base._updates):
            node.notify_style_update()
            return
        new = not (node._is_mounted or base._rules or animate)
        if new and id(rules) in checked:
            base._rules.update(checked[id(rules)][1])
            base._updates += 1
            node._nodes.updated()  # `display` may be among them
            node.notify_style_update()
        else:
            put(node, rules, animate)
            if new:
                checked[id(rules)] = rules, base.get_rules()
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


def read_at_once() -> None:
    """A reactive that has its value and is not computed from others, and whether a widget is disabled, are read without
    Textual's checks of the same each time."""
    get = Reactive.__get__
    stored: dict[tuple[type, object], bool] = {}

    def get_stored(self: Reactive[Any], obj: Any, obj_type: type) -> Any:
        if obj is not None and self.internal_name in obj.__dict__:
            key = obj_type, self
            if key not in stored:
                stored[key] = not hasattr(obj, self.compute_name)
            if stored[key]:
                return obj.__dict__[self.internal_name]
        return get(self, obj, obj_type)

    def is_disabled(self: Widget) -> bool:
        node: Any = self
        while isinstance(node, Widget):
            if node.__dict__.get("_reactive_disabled"):
                return True
            node = node._parent
        return False

    Reactive.__get__ = get_stored  # type: ignore[method-assign, assignment]
    Widget.is_disabled = property(is_disabled)  # type: ignore[method-assign, assignment]


def await_mounts_in_turn() -> None:
    """Textual waits for each new widget in a task of its own: more than for their messages."""

    async def all_mounted(self: AwaitMount) -> None:
        await asyncio.sleep(0)
        for widget in self._widgets:
            await widget._mounted_event.wait()
        if self._widgets:
            self._parent.refresh(layout=True)
            with suppress(NoScreen):
                self._parent.app._update_mouse_over(self._parent.screen)

    AwaitMount.__await__ = lambda self: all_mounted(self).__await__()  # type: ignore[method-assign]
