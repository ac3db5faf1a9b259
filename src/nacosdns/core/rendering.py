"""From a snapshot to a page of it, in slices: what counts, its records, their balancer, the page.

Must not know: queries, the book, which pages are kept, who waits between two slices. Rules: a page that turns is made
here and nowhere else, so that one made at once and one made in slices are the same; a slice of a thousand instances
takes some 0.2 ms; what stays the same to who asks stays the same page, and its rotation goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nacosdns.core import answers
from nacosdns.core.answers import at_once
from nacosdns.core.balance import balancer_type, tiered
from nacosdns.core.metrics import query_cell
from nacosdns.core.model import Rcode, RecordType
from nacosdns.core.page import Page, first_window

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from nacosdns.core.answers import Choice, Material, Slices
    from nacosdns.core.balance import Balancer
    from nacosdns.core.model import Policy, Snapshot
    from nacosdns.core.policy import Policies

RECIPES_MAX = 4_096
DIGESTED_FROM = 33
"""Records. A page of fewer is made anew in less time than is worth remembering what it was made of."""


class Rendering:
    """What all pages of a configuration are made with. ``identity`` is this host's, for balancers that hash."""

    def __init__(
        self, policies: Policies, balancers: Mapping[str, type[Balancer]], rng: Random, identity: bytes
    ) -> None:
        self.policies = policies
        self.balancers = balancers
        self.rng = rng
        self.identity = identity
        self._recipes: dict[tuple[RecordType, bytes, str, str], Recipe] = {}

    def __repr__(self) -> str:
        return f"<Rendering {len(self._recipes)} recipes by {self.policies!r}>"

    def recipe(self, kind: RecordType, *, zone: bytes, cluster: str = "", port: str = "") -> Recipe:
        """How pages of this kind are made; the same object for all services, for there are many pages."""
        wanted = (kind, zone, cluster, port)
        recipe = self._recipes.get(wanted)
        if recipe is None:
            if len(self._recipes) >= RECIPES_MAX:
                self._recipes.clear()
            recipe = self._recipes[wanted] = Recipe(self, kind, zone=zone, cluster=cluster, port=port)
        return recipe


class Recipe:
    """How the page of a question is made, whatever is known of its service then.

    ``kind`` is A, AAAA or SRV, ``zone`` the wire name under which SRV targets stand, ``cluster`` (folded) and ``port``
    (the word of ``_WORD._tcp``) which instances are meant; ``""`` is all of them.
    """

    __slots__ = ("_cluster", "_port", "_rendering", "_zone", "kind")

    def __init__(self, rendering: Rendering, kind: RecordType, *, zone: bytes, cluster: str, port: str) -> None:
        self.kind = kind
        self._rendering = rendering
        self._zone = zone
        self._cluster = cluster
        self._port = port

    def __repr__(self) -> str:
        return f"<Recipe {self.kind.name} cluster={self._cluster!r} port={self._port!r}>"

    def material(self, choice: Choice, policy: Policy) -> Material:
        """The records of these instances."""
        return at_once(self._material(choice, policy))

    def page(self, service: str, material: Material, policy: Policy) -> Page:
        """The page of these records, of which there is at least one."""
        return at_once(self._page(service, material, policy, _digest(material)))

    def anew(self, former: Page, snapshot: Snapshot) -> Slices[Page | None]:
        """The page that takes the place of ``former``, which may be itself. None: that takes a decision, not a page."""
        policy = self._rendering.policies.resolve(snapshot.key.service)
        choice = answers.choose(snapshot, policy, self._cluster)
        if self._port:
            choice = answers.only(choice, self._port, snapshot.key.service)
        if choice.why or not choice.instances:
            return None
        yield
        material = yield from self._material(choice, policy)
        if material.alias or not material.wires:
            return None
        yield
        digest = _digest(material)
        if digest and digest == former.digest:
            return former
        yield
        return (yield from self._page(former.service, material, policy, digest))

    def _material(self, choice: Choice, policy: Policy) -> Slices[Material]:
        if self.kind is RecordType.SRV:
            return (yield from answers.services_in_slices(choice, self._zone, policy.ttl_s))
        return (yield from answers.addresses_in_slices(choice, self.kind, policy.ttl_s))

    def _page(self, service: str, material: Material, policy: Policy, digest: int) -> Slices[Page]:
        rendering = self._rendering
        kind = balancer_type(policy.balancer, rendering.balancers)
        balancer = tiered(kind, material.members, material.tiers, rendering.rng, rendering.identity)
        yield
        take = min(policy.answers or len(material.wires), len(material.wires))
        window = first_window(balancer, take)
        yield
        page = Page(
            service,
            material.wires,
            material.glue_wires,
            balancer=balancer,
            take=take,
            cell=query_cell("zone", self.kind, Rcode.NOERROR, 1, over_tcp=False),
            window=window,
        )
        page.recipe = self
        page.digest = digest
        return page


def _digest(material: Material) -> int:
    """Tells materials apart, in this process; 0 for a small one."""
    return hash(material) if len(material.wires) >= DIGESTED_FROM else 0
