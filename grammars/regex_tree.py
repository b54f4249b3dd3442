"""From the parsed pattern to a tree without anchors and lookaheads, and back to text for other engines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError
from constrained_spec.grammars.regex_syntax import ANY, EMPTY, Alt, Anchor, Chars, Concat, Look, Meet, Node, Repeat
from constrained_spec.grammars.utf8 import complement, count

MAX_BRANCHES = 256


def simplify(node: Node) -> Node:
    """Strips anchors that say nothing and turns lookaheads into intersections; refuses the others."""
    return _LookaheadRemover().tail(_strip(node, True, True, False))


def _strip(node: Node, first: bool, last: bool, in_look: bool) -> Node:
    """``first``/``last``: nothing can stand before/after ``node``. End anchors inside a lookahead are kept there."""
    if isinstance(node, Anchor):
        if not (last if node.at_end else first):
            raise GrammarSyntaxError(
                f"regex: an anchor at position {node.position} that text can stand beside",
                position=node.position,
                param="regex",
                hint="the whole text must match anyway: drop the anchor",
            )
        return node if in_look and node.at_end else EMPTY
    if isinstance(node, Concat):
        leading = sum(1 for _ in takewhile(_is_zero_width, node.items))
        trailing = sum(1 for _ in takewhile(_is_zero_width, reversed(node.items)))
        ends = len(node.items) - 1 - trailing
        return Concat(
            tuple(
                _strip(item, first and i <= leading, last and i >= ends, in_look) for i, item in enumerate(node.items)
            )
        )
    if isinstance(node, Alt):
        return Alt(tuple(_strip(x, first, last, in_look) for x in node.items))
    if isinstance(node, Repeat):
        return Repeat(_strip(node.item, False, False, in_look), node.low, node.high)
    if isinstance(node, Look):
        return Look(_strip(node.item, first, True, True), node.negate, node.position)
    return node


def _is_zero_width(node: Node) -> bool:
    return isinstance(node, Anchor | Look) or node == EMPTY


def _has(node: Node, kind: type[Look | Anchor]) -> bool:
    if isinstance(node, kind):
        return True
    if isinstance(node, Concat | Alt):
        return any(_has(x, kind) for x in node.items)
    return isinstance(node, Repeat) and _has(node.item, kind)


class _LookaheadRemover:
    def __init__(self) -> None:
        self._branches = 0

    def tail(self, node: Node) -> Node:
        """``node`` reaches to the end of the text, so what a lookahead in it sees is known."""
        if not _has(node, Look):
            return node
        if isinstance(node, Alt):
            return Alt(tuple(self.tail(x) for x in node.items))
        items = node.items if isinstance(node, Concat) else (node,)
        at = next(i for i, x in enumerate(items) if _has(x, Look))
        rest = Concat(items[at + 1 :])
        return Concat((*items[:at], self._split(items[at], rest)))

    def _split(self, head: Node, rest: Concat) -> Node:
        """``head`` holds a lookahead; ``rest`` follows it."""
        self._branches += 1
        if self._branches > MAX_BRANCHES:
            raise GrammarBudgetError("the regex has too many lookaheads", limit="max_branches", param="regex")
        if isinstance(head, Look):
            return Meet(self.tail(rest), self._seen(head.item, head), head.negate)
        if isinstance(head, Concat):
            return self.tail(Concat((*head.items, *rest.items)))
        if isinstance(head, Alt):
            return Alt(tuple(self.tail(Concat((x, *rest.items))) for x in head.items))
        assert isinstance(head, Repeat)
        if (head.low, head.high) == (0, 1):
            return Alt((self.tail(Concat((head.item, *rest.items))), self.tail(rest)))
        raise GrammarSyntaxError(
            "regex: a lookahead inside a repeat cannot be enforced", param="regex", hint="move it outside the repeat"
        )

    def _seen(self, node: Node, look: Look) -> Node:
        """Whole rests of the text that the lookahead ``node`` holds for."""
        if isinstance(node, Alt):
            return Alt(tuple(self._seen(x, look) for x in node.items))
        items = list(node.items) if isinstance(node, Concat) else [node]
        while items and isinstance(items[-1], Concat) and items[-1].items:
            items[-1:] = items[-1].items
        if items and isinstance(items[-1], Alt) and _has(items[-1], Anchor):
            heads = tuple(items[:-1])
            return Alt(tuple(self._seen(Concat((*heads, x)), look) for x in items[-1].items))
        if items and isinstance(items[-1], Anchor):
            items.pop()
        else:
            items.append(Repeat(ANY, 0, None))
        whole = Concat(tuple(items))
        if _has(whole, Look) or _has(whole, Anchor):
            raise GrammarSyntaxError(
                f"regex: a lookahead within the lookahead at position {look.position} cannot be enforced",
                position=look.position,
                param="regex",
            )
        return whole


def weight(tree: Node) -> int:
    """Size of ``tree`` with its repeats written out."""
    if isinstance(tree, Concat | Alt):
        return 1 + sum(map(weight, tree.items))
    if isinstance(tree, Repeat):
        return 1 + weight(tree.item) * max(tree.low, tree.high or 0, 1)
    if isinstance(tree, Meet):
        return weight(tree.item) + weight(tree.look)
    return 1


def render_rust(tree: Node) -> str | None:
    r"""The pattern for llguidance, characters as ``\x{...}``. None if it holds an intersection."""

    def chars(node: Chars) -> str:
        if not node.ranges:
            return r"[^\x{0}-\x{10ffff}]"
        return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in node.ranges) + "]"

    return None if has_meet(tree) else _render(tree, chars)


def render_interegular(tree: Node) -> str:
    """The pattern for interegular: plain sets, whichever of a set and its complement lists fewer characters."""

    def chars(node: Chars) -> str:
        other = complement(node.ranges)
        negate = count(other) < count(node.ranges)
        listed = other if negate else node.ranges
        if count(listed) > 70_000:
            raise GrammarBudgetError(
                "a lookahead over so large a set of characters", limit="max_lookahead_characters", param="regex"
            )
        # Only backslash and bracket are special in interegular's sets, besides - and a leading ^.
        ends = ((_escape(a), _escape(b)) for a, b in listed)
        return f"[{'^' if negate else ''}{''.join(a if a == b else f'{a}-{b}' for a, b in ends)}]"

    assert not has_meet(tree)
    return _render(tree, chars)


def _escape(code: int) -> str:
    c = chr(code)
    return f"\\x{code:02x}" if code < 128 and not c.isalnum() else c


def has_meet(tree: Node) -> bool:
    """An intersection is in ``tree``."""
    if isinstance(tree, Concat | Alt):
        return any(has_meet(x) for x in tree.items)
    return isinstance(tree, Meet) or (isinstance(tree, Repeat) and has_meet(tree.item))


def _render(node: Node, chars: Callable[[Chars], str]) -> str:
    if isinstance(node, Chars):
        return chars(node)
    if isinstance(node, Concat):
        return "(?:" + "".join(_render(x, chars) for x in node.items) + ")"
    if isinstance(node, Alt):
        return "(?:" + "|".join(_render(x, chars) for x in node.items) + ")"
    assert isinstance(node, Repeat)
    high = "" if node.high is None else node.high
    return f"(?:{_render(node.item, chars)}){{{node.low},{high}}}"
