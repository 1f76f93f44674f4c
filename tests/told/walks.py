"""Graph walks in the findings: native walks, what carries the choice, matched supervision, control that lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopscope.quantity import every, of_tables, one
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk import (
    crossing,
    lasting,
    learning,
    matched,
    matched_tables,
    switching,
    targets,
    trajectories,
)
from loopscope.studies.graph_walk.composition import EVERY, PAIRS, spelled
from loopscope.studies.graph_walk.counting import node
from loopscope.studies.records import Record, apart, open_results, percent
from loopscope.studies.training_logs import History, histories
from tests.told.sentences import FINDINGS, Known, Rows, Said, Section, table_row

# ---- walks without maps ----------------------------------------------------------------------------------------------


def _native(evidence: Evidence) -> Known:
    walks = evidence.of("trajectories")
    patterns = [
        Said(evidence.one(record, "crossing.steering", run="J->0")) for record in evidence.mechanism("crossing")
    ]
    main = evidence.main("targets")
    assert main is not None
    labels = {seed: trajectories.labels(walks[f"d8l6-{seed}"].predictions["rings"]["native"])[0] for seed in (3, 5)}
    return {
        "once_more": Rows.at(evidence.quantities(main), "targets.answer", "answer", map="unsteered"),
        "rescue": patterns,
        "seed9": Said(evidence.one(walks["d8l6-9"], "native.retained")),
        "labels": labels,
        "passed": f"{100 * max(each.passed for each in labels.values()):.0f}",
        "seeds": [name for name in walks if name.startswith("d8l6-")],
    }


NATIVE = Section(
    FINDINGS, "Walks without maps", _native,
    [
        "Our main backbone holds u when it is called once more ({once_more[u].p} %),",
        "steered patterns alone rescue less ({rescue[1].p} and {rescue[2].p} % in the other two backbones).",
        "Extra loops do not keep the answer in every backbone ({seed9.p} % in seed 9).",
        "in seeds 3 and 5 it explains all of who is ahead, a label passed on the way at most {passed} %.",
    ],
    {
        "![Native walks of seventeen backbones]": lambda known: len(known["seeds"]) == 17,
        "Frequencies in exact tenths at loop 1 come from the label of the start:": lambda known: all(
            each.loop == 1 and each.by_step[0] > 1 - 1e-9 for each in known["labels"].values()
        ),
    },
)  # fmt: skip


# ---- composition on other backbones ----------------------------------------------------------------------------------


def _composed(evidence: Evidence) -> Known:
    """Of the main backbone, its record of eight calls; of the others, their counts by graph."""
    known = {}
    for name in evidence.selection.names:
        record = evidence.of("independent").get(name) or evidence.of("eight-calls", "independent-3001")[name]
        rows = {spelled(pair): evidence.one(record, "compose.two", string=pair) for pair in PAIRS}
        rows["mixed"] = evidence.one(record, "compose.long", kind="mixed", condition=EVERY, call=8)
        known[name.replace("-", "_")] = {pair: Said(row) for pair, row in rows.items()}
    return known


_PAIRS = ("one-one", "one-two", "two-one", "two-two", "mixed")


def _line(seed: int) -> str:
    cells = [f"{{d8l6_{seed}[{each}].p}} {{d8l6_{seed}[{each}].i}}" for each in _PAIRS]
    return " | ".join([f"| `d8l6-{seed}`", *cells])


COMPOSED = Section(
    FINDINGS, "Composition on other backbones", _composed,
    ["are measured (two fits, n = {d8l6_5[one-one].n}, per cent):", *map(_line, (5, 8, 14))],
)  # fmt: skip


# ---- does J select, or does it create? -------------------------------------------------------------------------------


def _selected(evidence: Evidence) -> Known:
    """By backbone and control, a row for each k: k-1, k0, ..., k4."""
    known: dict[str, object] = {}
    for name, record in evidence.of("selecting").items():
        for control in ("trained", "permuted", "none", "answer", "rank-4"):
            rows = every(evidence.quantities(record), "selecting.accuracy", control=control)
            told = {f"k{row.at['k']}": Said(row) for row in rows}
            known[f"{name.replace('-', '_')}_{control.replace('-', '')}"] = told
    steps = {name: set(trajectories.walk_of(each.predictions, each.facts).increments[1:7])
             for name, each in evidence.of("trajectories").items() if name.startswith("d8l6-")}  # fmt: skip
    ones = {
        name: evidence.one(record, "targets.answer", map="one", read=targets.AFTER_F, answer="f(u)").estimate.value
        for name, record in evidence.of("targets").items()
    }
    known["slow"] = sorted(share for name, share in ones.items() if 1 not in steps[name])
    known["least"] = percent(known["slow"][1])  # type: ignore[index]
    return known


SELECTED = Section(
    FINDINGS, "Does J select, or does it create?", _selected,
    [
        "J gives one and two hops in {d8l6_5_trained[k1].p} and {d8l6_5_trained[k2].p} % and three and four in "
        "{d8l6_5_trained[k3].p} and {d8l6_5_trained[k4].p} (n = {d8l6_5_trained[k1].n}).",
        "With permuted weights one and two hops are at {d8l6_5_permuted[k1].p} and {d8l6_5_permuted[k2].p} %, "
        "without any block at {d8l6_5_none[k1].p} and {d8l6_5_none[k2].p}:",
        "most of it without F ({d8l6_5_none[k-1].p}, {d8l6_8_none[k-1].p} and {d8l6_14_none[k-1].p} %):",
        "which skips it, J alone has {d8l8_1_none[k-1].p} %.",
        "on all rows ({d8l6_5_answer[k1].p} and {d8l6_5_answer[k2].p} % for one and two hops); of rank 4 it has "
        "{d8l6_5_rank4[k1].p} and {d8l6_5_rank4[k2].p}.",
        "J_one is right in {least} % or more on eight of the nine backbones",
    ],
    {"on eight of the nine backbones whose loops never step by one.": lambda known: len(known["slow"]) == 9},
)  # fmt: skip


# ---- what carries the choice -----------------------------------------------------------------------------------------


def _carried(evidence: Evidence) -> Known:
    record = evidence.of("switching")["d8l6-14"]
    answers = switching.Answers.of(record.predictions, record.facts, record.settings["where"])
    known = {}
    for giver, receiver in (("two", "one"), ("one", "two")):
        rows, target = switching._direction(answers, giver, receiver, "", ()).rows, node(switching.HOPS[giver])
        mlp = one(rows, "switching.part", part="MLP output", layers="layer 2", answer=target)
        known[f"{giver}_{receiver}"] = {"pattern": Said(one(rows, "switching.target")), "mlp": Said(mlp)}
    crossed = evidence.of("crossing")
    counted = {name: _counted(each) for name, each in crossed.items()}
    few = {name: most for name, most in counted.items() if most < 0.1}
    return known | {
        "patches": Said(evidence.one(crossed["d8l6-14"], "crossing.patch", part="pattern", answer="E")),
        "few": [int(name.rpartition("-")[2]) for name in few], "most": percent(max(few.values())),
    }  # fmt: skip


def _counted(record: Record) -> float:
    """The greatest share of pairs that count, with either fit."""
    answers = crossing.Answers.of(record.predictions, record.facts, crossing._roles(record.predictions)[1])
    return float(answers.eligible.double().mean(1).max())


CARRIED = Section(
    FINDINGS, "What carries the choice", _carried,
    [
        "In seed 14 the pattern carries less of it ({two_one[pattern].whole} and "
        "{one_two[pattern].whole} % switched), while layer 2's MLP output carries most "
        "({two_one[mlp].whole} and {one_two[mlp].whole} %).",
        "The same patterns still reroute between graphs in {patches.whole} %.",
        "so that few or no pairs count in the cross-graph patches (at most {most} % with a fit);",
    ],
    {
        "On seven other backbones (seeds 3, 4, 11, 13, 17, 18, 19) J_one moves the readout already before F,":
            lambda known: known["few"] == [3, 4, 11, 13, 17, 18, 19],
    },
)  # fmt: skip


# ---- are our maps easier to fit? -------------------------------------------------------------------------------------

TWO_HOPS = [2, 2, 2, 2, 0]
"""Increments to loops 2 to 6 of backbones that walk two steps in each of loops 2 to 5."""


def _fitted(evidence: Evidence) -> Known:
    walks, found = evidence.of("trajectories"), evidence.of("targets")
    steps = {name: trajectories.walk_of(walks[name].predictions, walks[name].facts).increments[1:6] for name in found}
    alike = [name for name in found if steps[name] == TWO_HOPS]
    right, gaps = {}, []
    for name, record in found.items():
        at = targets._walks(targets.WHERE, record.facts)
        answers = targets.conditions(record.predictions[targets.WHERE], record.facts)
        for target, hops in (("one", 1), ("two", 2)):
            fits = (answers[target, targets.AFTER_F] == at.ahead(hops))[:, at.kept].double().mean(1).tolist()
            right[name, target] = sum(fits) / len(fits)
            gaps.append(max(fits) - min(fits))
    fits = [each for store in open_results() for each in histories(store) if each.name.startswith("one-")]
    reached = [_reaches(each, 0.9) for each in fits if each.name.partition("@")[2] in alike]
    ones = sorted(right[name, "one"] for name in alike)
    return {
        "ones": [percent(ones[0]), percent(ones[-1])], "apart": percent(max(gaps)), "alike": alike,
        "seed19": percent(right["d8l6-19", "one"]), "steps19": steps["d8l6-19"],
        "reached": [f"{min(reached):,}", f"{max(reached):,}"],
    }  # fmt: skip


def _reaches(fit: History, level: float) -> int:
    """The update at which a fit is first checked to be right so often."""
    checks = (each for each in fit.result["history"] if each.get("score") is not None)
    return next(int(each["update"]) for each in checks if each["score"][0] >= level)


FITTED = Section(
    FINDINGS, "Are our maps easier to fit?", _fitted,
    [
        "our J_one is right in {ones[0]} to {ones[1]} % (five backbones;",
        "seed 19, which holds a loop earlier, has {seed19}),",
        "our two fits of a map end at most {apart} points apart,",
        "Backbones that walk alike need {reached[0]} to {reached[1]} updates to reach 90 %",
    ],
    {
        "On backbones that walk two steps in each of loops 2 to 5 and then hold,":
            lambda known: len(known["alike"]) == 5 and known["steps19"] == [2, 2, 2, 0, 0],
    },
)  # fmt: skip


# ---- supervision, or time? -------------------------------------------------------------------------------------------


def _supervised(evidence: Evidence) -> Known:
    pair = {name: record for name, record in evidence.of("matched").items() if name.endswith("-0")}
    study = matched.study_of(*apart(pair), matched.WHERE)
    gaps = {each.target: each.gap for each in matched_tables._pairs(study)}
    curves = learning.noted(pair["matched-final-0"].notes)
    both = apart(evidence.of("matched"))
    every_row = list(of_tables(matched_tables.tables(*both)))
    alone = Rows.at(every_row, "matched.before", "group", "condition")
    longer = matched_tables._longer(study).rows
    return {
        "rows": Rows.at(longer, "matched.longer.accuracy", "group", "condition"), "gaps": gaps, "curves": curves,
        "gained": Rows.at(longer, "matched.longer.gain", "group", "condition"),
        "before": Rows.at(longer, "matched.longer.before.right", "group", "condition"),
        "alone": alone, "after": Rows.at(every_row, "matched.accuracy", "group", "condition", "answer"),
    }  # fmt: skip


SUPERVISED = Section(
    FINDINGS, "Supervision, or time?", _supervised,
    [
        "the first fit of J_one on `matched-final-0` reaches {rows[matched-final-0, one-long].p} % (not "
        "{rows[matched-final-0, one].p}) and that of J_two {rows[matched-final-0, two-long].p} % (not "
        "{rows[matched-final-0, two].p}), both still rising;",
        "gives the target of J_one in {alone[matched-final, one].p} % and that of J_two in "
        "{alone[matched-final, two].p} % (means of five backbones, "
        "of {after[matched-final, one, one].p} and {after[matched-final, two, two].p} with F); on stepwise "
        "backbones in {alone[matched-stepwise, one].p} and {alone[matched-stepwise, two].p} %.",
        "Its stepwise partner gains {gained[matched-stepwise-0, two-long].p} points "
        "{gained[matched-stepwise-0, two-long].i} for J_two by the same time,",
        "Of what J_two gets right on `matched-final-0`, {before[matched-final-0, two].p} % "
        "can be read before F after 8,000 updates, {before[matched-final-0, two-long].p} % "
        "after 32,000.",
    ],
    {
        "With 32,000 updates instead of the protocol's 8,000, the first fit of J_one": lambda known: [
            {each.updates[-1] for each in known["curves"] if each.target == target}
            for target in ("one", "one-long", "two", "two-long")
        ] == [{8000}, {32000}, {8000}, {32000}],
        "both still rising;": lambda known: all(
            each.kept == each.updates[-1] for each in known["curves"] if each.target.endswith("-long")
        ),
        "this is also the pair in which the order is not reversed.": lambda known: known["gaps"]["two"].value < 0,
        "so that the order is then reversed in this pair, too.": lambda known: known["gaps"]["two-long"].low > 0,
    },
)  # fmt: skip


# ---- control that lasts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lasting:
    """One backbone's record: `rows` by family, kind and call, such as "pool one 64"; `by_fit` the same of each fit."""

    counted: lasting.Counted

    def __getitem__(self, which: str) -> Said:
        family, kind, call = which.split()
        return Said(self.counted.row(family, kind, int(call)))

    @property
    def by_fit(self) -> Mapping[str, list[str]]:
        """In per cent, of one hop with `pool` at call 64."""
        right = self.counted.found["pool one right"].double() / self.counted.kept
        return {"pool 64": [percent(float(each)) for each in right[:, 63]]}

    @property
    def costs(self) -> Rows:
        """What lasting costs at the first call."""
        return Rows.at(lasting.costs(self.counted), "lasting.cost", "family", "kind")

    @property
    def reach(self) -> Mapping[str, int]:
        """For how many calls one hop stays at 95 % or above."""
        return {family: lasting.reach(self.counted, family, "one") for family in lasting.FAMILIES}

    def radii(self, family: str, kind: str = "one") -> list[float]:
        """The spectral radius of each fit."""
        found: list[float] = lasting._sizes(self.counted, family, kind).amax(1).tolist()
        return found

    @property
    def radius(self) -> list[str]:
        """Those of the published J_one."""
        return [f"{each:.2f}" for each in self.radii("published")]

    @property
    def grows(self) -> str:
        """How many times rows of the graph grow over all calls with the published J_one."""
        sizes = lasting.limits(self.counted, "published", "one").graph
        return f"{sizes[-1] / sizes[0]:.0f}"

    @property
    def lasting_stays(self) -> bool:
        """Whether every radius of a map that was fitted to last is below 1, and graph rows do not grow."""
        mine = [family for family in lasting.FAMILIES if family != lasting.PUBLISHED]
        below = all(each < 1 for family in mine for kind in ("one", "two") for each in self.radii(family, kind))
        sizes = [lasting.limits(self.counted, family, "one").graph for family in mine]
        return below and all(each[-1] <= each[0] for each in sizes)


def _lasting(evidence: Evidence) -> Known:
    found = evidence.of("lasting")
    main, second, third = (
        Lasting(lasting.Counted.of(found[name].predictions, found[name].facts)) for name in evidence.selection.names
    )
    cheap = [said.row.estimate.value for which, said in main.costs.items() if which != "pool, two"]
    dear = sorted(-row.estimate.value for row in every(lasting.costs(third.counted), "lasting.cost", kind="two"))
    families = [family for family in lasting.FAMILIES if family != lasting.PUBLISHED]
    two = sorted(third.counted.row(family, "two", 8).estimate.value for family in families)
    return {
        "main": main, "second": second, "third": third,
        "least": percent(min(cheap)), "most": f"+{percent(max(cheap))}",
        "dear": [percent(dear[0]), percent(dear[-1])], "two": [percent(two[0]), percent(two[-1])],
        "names": evidence.selection.names, "kept": f"{main.counted.kept:,}",
    }  # fmt: skip


SHOWN = (1, 8, 16, 32, 48, 64)


def _row(label: str, family: str) -> str:
    return table_row(label, *(f"{{main[{family} one {call}].p}}" for call in SHOWN))


LASTING = Section(
    FINDINGS, "Control that lasts", _lasting,
    [
        "Main backbone, n = {kept}, mean of two fits, the same rank-48 map:",
        _row("published", "published"),
        _row("`rollout`: trained through eight of its own calls", "rollout"),
        _row("`pool`: then on states it has led itself", "pool"),
        "Intervals: `rollout` at call 8 {main[rollout one 8].i}; `pool` at call 48 {main[pool one 48].i}, at call 64 "
        "{main[pool one 64].i}.",
        "The two fits of `pool` are at {main.by_fit[pool 64][0]} and {main.by_fit[pool 64][1]} % at call 64;",
        "Two maps that take turns in random strings (`strings`) are right in {main[strings mixed 8].p} % of mixed "
        "strings at call 8.",
        "It costs nothing at the first call ({least} to {most} points), but for `pool` with two hops "
        "({main.costs[pool, two].p} {main.costs[pool, two].i}), which is at "
        "{main[pool two 16].p} % after 16 calls and {main[pool two 32].p} % after 32.",
        "whose linear part stretches (spectral radius {main.radius[0]} and {main.radius[1]}), rows of the graph grow "
        "{main.grows}-fold over 64 calls.",
        "one hop at call 8 with `rollout` {second[rollout one 8].p} % {second[rollout one 8].i} (published "
        "{second[published one 8].p}), with `pool` at call 32 {second[pool one 32].p} {second[pool one 32].i}, at call "
        "64 {second[pool one 64].p} {second[pool one 64].i} ({second.by_fit[pool 64][0]} and "
        "{second.by_fit[pool 64][1]} by fit); mixed strings at call 8 with `strings` {second[strings mixed 8].p} "
        "{second[strings mixed 8].i}; the price of `pool` with two hops {second.costs[pool, two].p} "
        "{second.costs[pool, two].i};",
        "at call 8 with `rollout` {third[rollout one 8].p} % {third[rollout one 8].i} (published "
        "{third[published one 8].p}), with `pool` at call 32 {third[pool one 32].p} {third[pool one 32].i}, but at "
        "call 64 {third[pool one 64].p} {third[pool one 64].i} ({third.by_fit[pool 64][0]} and "
        "{third.by_fit[pool 64][1]}).",
        "already the published J_two is right in {third[published two 1].p} % only, lasting fits lose {dear[0]} to "
        "{dear[1]} points of that and are at {two[0]} to {two[1]} % at call 8, mixed strings with `strings` at "
        "{third[strings mixed 8].p}.",
        "the published J_one does not stretch (radii {third.radius[0]} and {third.radius[1]}), yet graph rows grow "
        "{third.grows}-fold:",
        "Accuracy stays at 95 % or above for {main.reach[pool]}, {second.reach[pool]} and {third.reach[pool]} calls "
        "(`pool`, one hop), {main.reach[rollout]}, {second.reach[rollout]} and {third.reach[rollout]} (`rollout`), "
        "{main.reach[published]} (published).",
    ],
    {
        "The radii of maps that last are below 1, and graph rows do not grow at all.":
            lambda known: known["main"].lasting_stays,
        "A second backbone, `d8l6-8`, says the same:": lambda known: known["names"][1] == "d8l6-8",
        "The third, `d8l6-14`, says it of one hop:": lambda known: known["names"][2] == "d8l6-14",
        "published radii above 1, all others below.": lambda known: known["second"].lasting_stays
            and min(known["second"].radii("published")) > 1,
    },
)  # fmt: skip

SECTIONS = (NATIVE, COMPOSED, SELECTED, CARRIED, FITTED, SUPERVISED, LASTING)
