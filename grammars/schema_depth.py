"""A rewritten schema bounded in depth: the values whose arrays and objects nest at most so many levels.

Every subschema is written once for each number of levels that is left where it stands, so a recursive definition
unrolls into as many as it has levels. What needs more levels than are left has no value there; that is carried up to
where another choice is left, or to the root.
"""

from __future__ import annotations

from typing import cast

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError
from constrained_spec.grammars.schema_clauses import TYPES
from constrained_spec.grammars.schema_emit import MAX_SIZE
from constrained_spec.grammars.schema_walk import Json

MAX_DEPTH = 64  # levels that may be asked for

_OF_ARRAYS = ("items", "prefixItems", "minItems", "maxItems")
_OF_OBJECTS = (
    "properties", "required", "patternProperties", "additionalProperties", "minProperties", "maxProperties"
)  # fmt: skip

Node = dict[str, Json]


def check_max_depth(max_depth: object) -> None:
    """Raises ``RequestError`` unless it is None or a whole number from 0 to ``MAX_DEPTH``."""
    if max_depth is None:
        return
    if isinstance(max_depth, bool) or not isinstance(max_depth, int) or not 0 <= max_depth <= MAX_DEPTH:
        raise RequestError(
            f"max_depth is a whole number from 0 to {MAX_DEPTH}, got {max_depth!r}",
            param="max_depth",
            hint="0 allows no array and no object; leave it out for any depth",
        )


def bounded(schema: Json, max_depth: int | None) -> Json:
    """``schema``, as ``schema_rewrite`` writes it, for values of at most ``max_depth`` levels; None changes nothing.

    Raises ``UnsatisfiableError`` if there is no such value, ``GrammarBudgetError``.
    """
    if max_depth is None:
        return schema
    definitions = cast(Node, schema.get("$defs", {})) if isinstance(schema, dict) else {}
    bounding = _Bounding(definitions)
    root = {k: v for k, v in schema.items() if k != "$defs"} if isinstance(schema, dict) else schema
    made = bounding.at(root, max_depth)
    if made is False:
        raise UnsatisfiableError(
            f"no value of at most {max_depth} levels satisfies the schema", param="max_depth", hint="allow more levels"
        )
    assert isinstance(made, dict)
    return {**made, "$defs": bounding.definitions} if bounding.definitions else made


class _Bounding:
    def __init__(self, source: Node) -> None:
        self.definitions: Node = {}
        self._source = source
        self._made: dict[tuple[str, int], Json] = {}
        self._size = 0

    def at(self, node: Json, depth: int) -> Json:
        """``node`` where ``depth`` levels are left; False if it has no value there."""
        self._size += 1
        if self._size > MAX_SIZE:
            raise GrammarBudgetError(
                f"the schema unrolled to max_depth exceeds {MAX_SIZE} nodes",
                limit="max_rewritten_schema",
                param="max_depth",
                hint="allow fewer levels",
            )
        if node is False:
            return False
        if node is True or not node:
            return self._any(depth)
        assert isinstance(node, dict)
        if "$ref" in node:
            return self._definition(cast(str, node["$ref"]).removeprefix("#/$defs/"), depth)
        if "anyOf" in node:
            options = [self.at(option, depth) for option in cast(list[Json], node["anyOf"])]
            left = [option for option in options if option is not False]
            return {**node, "anyOf": left} if left else False
        if "enum" in node or "const" in node:
            return _listed(node, depth)
        return self._plain(node, depth)

    def _definition(self, name: str, depth: int) -> Json:
        if (name, depth) not in self._made:
            # Between a definition and itself lies an array or an object, so this does not meet itself.
            made = self.at(self._source[name], depth)
            if made is not False:
                self.definitions[f"{name}_{depth}"] = made
            self._made[name, depth] = made if made is False else {"$ref": f"#/$defs/{name}_{depth}"}
        return self._made[name, depth]

    def _any(self, depth: int) -> Json:
        for level in range(depth + 1):
            below: Json = {"$ref": f"#/$defs/any_{level - 1}"}
            node: Json = (
                {"items": below, "additionalProperties": below}
                if level
                else {"type": ["null", "boolean", "number", "string"]}
            )
            self.definitions.setdefault(f"any_{level}", node)
        return {"$ref": f"#/$defs/any_{depth}"}

    def _plain(self, node: Node, depth: int) -> Json:
        listed = node.get("type", list(TYPES))
        kinds = cast(list[Json], listed if isinstance(listed, list) else [listed])
        made = dict(node)
        for kind, write, keywords in (("array", self._array, _OF_ARRAYS), ("object", self._object, _OF_OBJECTS)):
            if kind not in kinds:
                continue
            new = write(made, depth - 1) if depth else None
            made = {k: v for k, v in made.items() if k not in keywords}
            if new is None:
                kinds = [k for k in kinds if k != kind]
            else:
                made |= new
        if not kinds:
            return False
        return {**made, "type": kinds[0] if len(kinds) == 1 else kinds}

    def _array(self, node: Node, depth: int) -> Node | None:
        """The keywords of arrays whose items have ``depth`` levels left; None if there are none."""
        low, high = node.get("minItems", 0), node.get("maxItems")
        prefix: list[Json] = []
        for item in cast(list[Json], node.get("prefixItems", [])):
            made = self.at(item, depth)
            if made is False:
                break
            prefix.append(made)
        whole = len(prefix) == len(cast(list[Json], node.get("prefixItems", [])))
        rest = self.at(node.get("items", True), depth) if whole else False
        if rest is False:
            high = len(prefix) if high is None else min(cast(int, high), len(prefix))
        if high is not None and cast(int, low) > cast(int, high):
            return None
        found: Node = {"prefixItems": prefix[: None if high is None else int(cast(int, high))]} if prefix else {}
        if rest is not False:
            found["items"] = rest
        found |= {"minItems": low} if low else {}
        return found if high is None else {**found, "maxItems": high}

    def _object(self, node: Node, depth: int) -> Node | None:
        """The same for objects and the values of their properties."""
        names = {n: self.at(x, depth) for n, x in cast(Node, node.get("properties", {})).items()}
        patterns = {p: self.at(x, depth) for p, x in cast(Node, node.get("patternProperties", {})).items()}
        other = self.at(node.get("additionalProperties", True), depth)
        required = cast(list[str], node.get("required", []))
        is_open = other is not False or any(x is not False for x in patterns.values())
        # A required name that is not declared falls under the other rules.
        if any(names.get(name, is_open) is False for name in required):
            return None
        if not is_open and cast(int, node.get("minProperties", 0)) > len(required):
            return None  # it asks for names that are not declared
        found: Node = {k: node[k] for k in ("required", "minProperties", "maxProperties") if k in node}
        if not is_open:
            names, patterns = {n: x for n, x in names.items() if x is not False}, {}
        if names:
            found["properties"] = names
        if patterns:
            found["patternProperties"] = patterns
        return {**found, "additionalProperties": other}


def _listed(node: Node, depth: int) -> Json:
    """A schema of given values: those that are not too deep."""
    if "const" in node:
        return False if _is_deeper(node["const"], depth) else node
    kept = [v for v in cast(list[Json], node["enum"]) if not _is_deeper(v, depth)]
    return {**node, "enum": kept} if kept else False


def _is_deeper(value: Json, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (depth == 0 or any(_is_deeper(x, depth - 1) for x in inner))
