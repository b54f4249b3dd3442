"""Where a reference of a JSON Schema leads: ids, anchors, pointers, dynamic scope. Nothing is ever fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import cast
from urllib.parse import unquote, urldefrag, urljoin

from jsonschema_specifications import REGISTRY as SPECIFICATIONS  # type: ignore[import-untyped]

from constrained_spec.errors import UnsupportedSchemaError
from constrained_spec.grammars.schema_walk import Json, children, escape

MAX_HOPS = 16  # references that lead to references
DRAFTS = {
    "http://json-schema.org/draft-03/schema": 3,
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}


@dataclass(eq=False, slots=True)
class Resource:
    """One schema with a URI of its own. ``anchors`` lead to (schema, pointer in the resource)."""

    uri: str
    root: Json
    draft: int
    prefix: str  # of every pointer into it, for messages
    anchors: dict[str, tuple[Json, str]] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    made: dict[str, dict[str, Json]] = field(default_factory=dict)  # schemas of our own, by content
    recursive: bool = False  # 2019-09: $recursiveAnchor


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A schema where it stands: its resource, pointer, and the resources passed on the way, outermost first."""

    node: Json
    resource: Resource
    pointer: str
    scope: tuple[Resource, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for places that mean the same: documents live as long as the rewriting, so ``id`` names a node."""
        return (self.node if isinstance(self.node, bool) else id(self.node), self.resource.uri, self.scope)

    def child(self, *tokens: str | int) -> Place:
        """The subschema under ``tokens``; it may have a URI of its own."""
        node: Json = self.node
        for token in tokens:
            node = node[cast(int, token)] if isinstance(node, list) else cast(dict[str, Json], node)[cast(str, token)]
        return self.at(node, f"{self.pointer}{''.join(f'/{escape(t)}' for t in tokens)}")

    def made(self, node: dict[str, Json]) -> Place:
        """A schema of our own in this place; equal ones are the same."""
        kept = self.resource.made.setdefault(json.dumps(node, sort_keys=True), node)
        return self.at(kept, self.pointer)

    def at(self, node: Json, pointer: str) -> Place:
        return Place(node, self.resource, pointer, self.scope)


class References:
    """All resources of a document and of the caller's registry, and how references between them resolve."""

    def __init__(self, root: Json, registry: Mapping[str, Json] | None, draft: int) -> None:
        self._resources: dict[str, Resource] = {}
        self._by_root: dict[int, Resource] = {}
        self._registry = {uri.removesuffix("#"): schema for uri, schema in (registry or {}).items()}
        self._default = draft
        self._nodes: dict[int, Resource] = {}  # the resource of every scanned node
        self.uses_scope = False
        self.root = self._scan(root, "", draft, "")

    def start(self) -> Place:
        place = Place(self.root.root, self.root, "", (self.root,))
        return self._entered(place)

    def _entered(self, place: Place) -> Place:
        """``place``, moved into the resource that its node opens, if it opens one."""
        own = self._by_root.get(id(place.node)) if isinstance(place.node, dict) else None
        if own is None or own is place.resource:
            return place
        return Place(place.node, own, place.pointer, self._pass(place.scope, own))

    def child(self, place: Place, *tokens: str | int) -> Place:
        return self._entered(place.child(*tokens))

    def _pass(self, scope: tuple[Resource, ...], resource: Resource) -> tuple[Resource, ...]:
        # Only the first time a resource is passed counts, and only if something asks for the scope.
        if resource in scope or not self.uses_scope:
            return scope
        return (*scope, resource)

    def followed(self, place: Place) -> Place:
        """Where ``place`` leads if it is nothing but a reference, else, or if that leads nowhere, ``place`` itself."""
        at = place
        for _ in range(MAX_HOPS):
            if not isinstance(at.node, dict) or at.node.keys() != {"$ref"}:
                return at
            try:
                at = self.resolve(at, "$ref")
            except UnsupportedSchemaError:
                break
        return place

    def resolve(self, place: Place, keyword: str) -> Place:
        """The place that ``keyword`` of ``place`` points to. Raises ``UnsupportedSchemaError``."""
        ref = cast(dict[str, Json], place.node)[keyword]
        at = f"{place.pointer}/{keyword}"
        if not isinstance(ref, str):
            raise _unresolved(repr(ref), at, keyword)
        target, fragment = self._look(place, ref, at, keyword)
        if keyword == "$recursiveRef" and target.resource.recursive:
            outer = next((r for r in place.scope if r.recursive), target.resource)
            return self._at(outer, outer.root, "", place.scope)
        if keyword == "$dynamicRef" and fragment in target.resource.dynamic:
            outer = next((r for r in place.scope if fragment in r.dynamic), target.resource)
            return self._at(outer, *outer.anchors[fragment], place.scope)
        return target

    def _look(self, place: Place, ref: str, at: str, keyword: str) -> tuple[Place, str]:
        uri, fragment = urldefrag(ref)
        full = urljoin(place.resource.uri, uri) if uri else place.resource.uri
        resource = self._find(full)
        if resource is None:
            raise _unresolved(ref, at, keyword)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in resource.anchors:
                raise _unresolved(ref, at, keyword)
            return self._at(resource, *resource.anchors[fragment], place.scope), fragment
        node, pointer = resource.root, ""
        for token in fragment.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            pointer += f"/{escape(name)}"
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise _unresolved(ref, at, keyword)
            if isinstance(node, dict) and id(node) in self._by_root:
                resource, pointer = self._by_root[id(node)], ""
        if not isinstance(node, dict | bool):
            raise _unresolved(ref, at, keyword)
        return self._at(resource, node, pointer, place.scope), fragment

    def _at(self, resource: Resource, node: Json, pointer: str, scope: tuple[Resource, ...]) -> Place:
        return Place(node, resource, resource.prefix + pointer, self._pass(scope, resource))

    def _find(self, uri: str) -> Resource | None:
        uri = uri.removesuffix("#")
        if uri not in self._resources:
            schema = self._registry.get(uri, _specification(uri))
            if schema is None:
                return None
            known = self._scan(schema, uri, self._default, uri + "#")
            self._resources.setdefault(uri, known)
        return self._resources[uri]

    def _scan(self, root: Json, uri: str, draft: int, prefix: str) -> Resource:
        """Registers ``root`` and every resource and anchor inside it."""
        top = self._open(root, uri, draft, prefix)
        todo: list[tuple[Json, Resource, str]] = [(root, top, "")]
        while todo:
            node, resource, pointer = todo.pop()
            if not isinstance(node, dict):
                continue
            if node is not resource.root and self._own_id(node, resource.draft):
                resource, pointer = self._open(node, resource.uri, resource.draft, resource.prefix + pointer), ""
            self._anchor(node, resource, pointer)
            todo += [(inner, resource, f"{pointer}{at}") for at, inner in children(node)]
        return top

    def _anchor(self, node: dict[str, Json], resource: Resource, pointer: str) -> None:
        if "$dynamicRef" in node or "$recursiveRef" in node:
            self.uses_scope = True
        old = node.get("id" if resource.draft <= 4 else "$id")
        if resource.draft <= 7 and isinstance(old, str) and old.startswith("#") and len(old) > 1:
            resource.anchors[old[1:]] = (node, pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = node.get(keyword)
            if isinstance(name, str) and resource.draft > 7:
                resource.anchors[name] = (node, pointer)
                if keyword == "$dynamicAnchor":
                    resource.dynamic.add(name)
        if node is resource.root and node.get("$recursiveAnchor") is True:
            resource.recursive = True

    @staticmethod
    def _own_id(node: dict[str, Json], draft: int) -> str | None:
        own = node.get("id" if draft <= 4 else "$id")
        if not isinstance(own, str) or own.startswith("#") or (draft <= 7 and "$ref" in node):
            return None
        return own

    def _open(self, root: Json, base: str, draft: int, prefix: str) -> Resource:
        uri = base
        if isinstance(root, dict):
            draft = draft_of(root, draft)
            uri = urljoin(base, self._own_id(root, draft) or "") if base else self._own_id(root, draft) or ""
        resource = Resource(uri.removesuffix("#"), root, draft, prefix)
        self._resources.setdefault(resource.uri, resource)
        if isinstance(root, dict):
            self._by_root[id(root)] = resource
        return resource


def draft_of(root: Json, default: int) -> int:
    """The dialect that ``$schema`` of ``root`` names (year, or number before 2019), else ``default``."""
    named = root.get("$schema") if isinstance(root, dict) else None
    return DRAFTS.get(named.removesuffix("#"), default) if isinstance(named, str) else default


def specification_uris() -> Iterator[str]:
    """URIs of the meta-schemas, which every schema may refer to."""
    return iter(SPECIFICATIONS)


@cache
def _specification(uri: str) -> Json:
    if uri not in SPECIFICATIONS:
        return None
    return cast(Json, SPECIFICATIONS.contents(uri))


def _unresolved(ref: str, pointer: str, keyword: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"a reference cannot be resolved: {ref}",
        pointer=pointer,
        keyword=keyword,
        hint="give the schema it names in the registry; nothing is fetched",
    )
