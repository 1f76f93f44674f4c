"""The second pass over a plan: it goes from the readouts backwards and drops what nobody asks for.

Say only the last row is read: then the last layer needs keys and values of all rows, but queries, output projection and
MLP of that row alone.  What a patched run does not compute itself it asks of its base run, and of what its patches are
taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from loopscope.execute.runs import NOTHING, BaseRun, Cone, LayerNeed, Part, PatchedRun, PlacedPatch, Sizes
from loopscope.execute.sight import Rows, Sight
from loopscope.program import Zeros

LEAVING = ("attn_out", "mlp_hidden", "mlp_out")
"""Components of rows that leave a layer."""


class Demands:
    """Asks of every run, and through it of the runs before it, what the runs behind it need.

    Runs are gone through from the last to the first, patched ones before base runs; their `need` is what is read.
    """

    def __init__(self, sizes: Sizes, sight: Callable[[BaseRun, int], Sight]) -> None:
        self.sizes, self.sight = sizes, sight
        self._known: dict[tuple[object, ...], tuple[tuple[LayerNeed, ...], Rows]] = {}

    def patched(self, patched: PatchedRun) -> None:
        """What a patched run computes, layer by layer; the rest it asks of its base run and of givers."""
        base, wanted = patched.base, patched.need
        assert wanted <= patched.differing
        if not base.part:
            if patched.parent is not None:
                patched.parent.need |= wanted & patched.parent.differing
            return
        cone = patched.reach
        asked = tuple(
            (layer, component, rows) for layer, each in patched.captured.items() for component, rows in each.items()
        )
        key = cone, wanted, asked
        if key not in self._known:
            self._known[key] = self._layers(base, cone, wanted, patched.captured)
        patched.layers, wanted = self._known[key]
        for number, patches in patched.patches.items():
            for patch in patches:
                self._want(patch, patched.layers[number - 1])
        before = wanted
        if base.is_call and self.sizes.several:
            before = wanted | patched.need
        if patched.parent is not None:
            patched.parent.need |= before & patched.differing_before
        base.before_needed |= before - patched.differing_before
        if base.is_call and self.sizes.injects:
            if patched.e is not None:
                patched.e.need |= wanted & patched.differing_e
            base.e_needed |= wanted - patched.differing_e

    def _layers(
        self, base: BaseRun, cone: Cone, wanted: Rows, captured: Mapping[int, Mapping[str, Rows]]
    ) -> tuple[tuple[LayerNeed, ...], Rows]:
        """What runs of a cone compute, layer by layer, and the differing rows that they need of what enters.

        `wanted` are rows behind the last layer.  What they take from the base run is asked of it.
        """
        needs = []
        for index in reversed(range(len(base.layers))):
            need, under, asked = LayerNeed(), base.layers[index], captured.get(index + 1, NOTHING)
            needs.append(need)
            if not (wanted or asked):
                continue
            differs, reached, keyed = cone.differs[index], cone.reached[index], cone.keyed[index]
            if asked:
                own = {"resid": differs, "k": keyed, "v": keyed}
                for component, rows in asked.items():
                    base.capture(index + 1, component, rows - own.get(component, reached))
                need.captured = {c: rows & own.get(c, reached) for c, rows in asked.items()}
            need.leaving = (wanted & reached) | need.captured_rows(*LEAVING)
            need.mixed = need.leaving | need.captured_rows("q", "pattern", "z")
            seen = self.sight(base, index + 1).seen(need.mixed)
            need.keyed = (seen & keyed) | need.captured_rows("k", "v")
            if any(place[0] == index + 1 for place in cone.places):
                need.keyed |= seen & need.mixed  # so that it attends as runs do that were patched in layers before
            under.base_keys_needed |= seen - need.keyed
            need.entering = need.mixed | need.keyed | need.captured_rows("resid")
            under.base_entering_needed |= need.entering - cone.entering[index] - cone.replaced[index]
            wanted = (need.entering & cone.entering[index]) - cone.replaced[index]
        return tuple(reversed(needs)), wanted

    @staticmethod
    def _want(patch: PlacedPatch, need: LayerNeed) -> None:
        """Ask the patch's origin for the rows that matter here."""
        component = patch.site.component
        by_stage = {"resid": need.entering, "k": need.keyed, "v": need.keyed}
        relevant = by_stage.get(component, need.leaving if component in LEAVING else need.mixed)
        patch.wanted = tuple(r for r in patch.site.numbers if r in relevant)
        giver = patch.origin.base if patch.origin.patched is None else patch.origin.patched
        if giver is not None and patch.wanted:
            giver.capture(patch.site.layer, component, frozenset(patch.theirs(patch.wanted)))

    def base(self, base: BaseRun) -> None:
        """What a base run computes, layer by layer, and what it needs of the run before it."""
        wanted = base.need
        for number in reversed(range(1, len(base.layers) + 1)):
            need, sight = base.layers[number - 1], self.sight(base, number)
            need.leaving = wanted | need.captured_rows(*LEAVING)
            need.mixed = need.leaving | need.captured_rows("q", "pattern", "z")
            need.keyed = sight.seen(need.mixed) | need.captured_rows("k", "v") | need.base_keys_needed
            need.entering = need.mixed | need.keyed | need.captured_rows("resid") | need.base_entering_needed
            wanted = need.entering
        if base.parent is None:
            return
        if base.is_call and base.e is not None:
            base.e.need |= wanted | base.e_needed
        carried = base.need if base.is_call and self.sizes.several else set()
        if not (isinstance(base.step, Part) and isinstance(base.step.start, Zeros | int)):
            base.parent.need |= wanted | carried | base.before_needed
