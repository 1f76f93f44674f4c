"""Speed, in the README and the page on performance; what was measured and what lies beyond it, in the ledger's page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from loopscope.studies.claims import CLAIMS
from loopscope.studies.evidence import Evidence
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.tests import CONTENT, STEERING
from loopscope.studies.letters.walks import WALKS
from tests.told import depths, letters, replies, walks
from tests.told.found import Found
from tests.told.sentences import LEDGER, PERFORMANCE, README, ROOT, Known, Section, table_row

# ---- what was measured -----------------------------------------------------------------------------------------------


def _measured(evidence: Evidence) -> Known:
    return {
        "claims": len(CLAIMS), "names": evidence.selection.names,
        "fits": {
            experiment: {name: dict(record.facts.fits) for name, record in evidence.of(experiment).items()}
            for experiment in ("trajectories", "targets", "matched", "continuation", "parity", "chains")
        },
    }  # fmt: skip


def _all(fits: Iterable[dict[str, int]], maps: int, *targets: str) -> bool:
    return all(sum(each[target] for target in targets) == maps for each in fits)


MEASURED = Section(
    LEDGER, "What was measured", _measured,
    ["The ledger has {claims} claims that we chose from the paper,"],
    {
        "seventeen D8L6 backbones (seeds 3-19) with four maps each,": lambda known: [*known["fits"]["targets"]]
            == [f"d8l6-{seed}" for seed in range(3, 20)] and _all(known["fits"]["targets"].values(), 4, "one", "two"),
        "five matched pairs with six maps each,": lambda known: len(known["fits"]["matched"]) == 10
            and _all(known["fits"]["matched"].values(), 6, "stay", "one", "two"),
        "twelve D8L8 walkers,": lambda known: sum(name.startswith("d8l8-") for name in known["fits"]["trajectories"])
            == 12,
        "twelve eight-node backbones with two maps each,": lambda known: len(known["fits"]["continuation"]) == 12
            and _all(known["fits"]["continuation"].values(), 2, "continue16"),
        "three parity backbones with a map each,": lambda known: len(known["fits"]["parity"]) == 3
            and _all(known["fits"]["parity"].values(), 1, "parity-staged"),
        "and a relation backbone with three.": lambda known: len(known["fits"]["chains"]) == 1
            and _all(known["fits"]["chains"].values(), 3, "relations-curriculum"),
        "By the rule seeds 5, 8 and 14 are taken apart; 5 is the main one.": lambda known: known["names"]
            == ("d8l6-5", "d8l6-8", "d8l6-14"),
    },
)  # fmt: skip


# ---- beyond the verdicts ---------------------------------------------------------------------------------------------


def _beyond(evidence: Evidence) -> Known:
    last, every = (letters.record(evidence, letters.SMOLLM2, CONTENT, each) for each in (letters.LAST, letters.EVERY))
    searches = [selection_of(letters.record(evidence, name, HEADS)) for name in letters.FOUR]
    return {
        "lasting": walks.LASTING.known(evidence), "matched": walks.SUPERVISED.known(evidence),
        "iterations": replies.ITERATED.known(evidence),
        "antonyms": replies.ANTONYM_SECTION.known(evidence),
        "last": letters.answers(evidence, last), "content": letters.answers(evidence, every),
        "parity": {
            name: depths.timed(evidence, name)
            for name in depths.BACKBONES
        },
        "small": [
            letters.answers(evidence, letters.record(evidence, name, CONTENT)).value("pattern", "E")
            for name in letters.FOUR[:3]
        ],
        "passed": [each is not None and each.passed for each in searches],
        "walks": letters.walked(evidence, letters.record(evidence, letters.SMOLLM2, WALKS)),
    }  # fmt: skip


def _timing(known: Known) -> bool:
    """On the line, `parity-1` loses by J and `parity-0` gains; at t = n all gain."""
    first, second, third = (known["parity"][name] for name in depths.BACKBONES)
    on_line = [rows["J minus native, on the line"].row.estimate for rows in (first, second, third)]
    return bool(on_line[0].low > 0 and on_line[1].high < 0 and third["J minus native, on the line"].whole == "5")


def _deep(form: str, name: str) -> str:
    return f"{{antonyms[{form}][{name}].deep.p}}"


BEYOND = Section(
    LEDGER, "Beyond the verdicts", _beyond,
    [
        "is right in {lasting[main][rollout one 8].p} % at call 8 instead of {lasting[main][published one 8].p} %, and "
        "on its own states in {lasting[main][pool one 64].p} % at call 64 (on two more backbones "
        "{lasting[second][rollout one 8].p} and {lasting[second][pool one 64].p} %, {lasting[third][rollout one 8].p} "
        "and {lasting[third][pool one 64].p} %; means of two fits).",
        "it reads out before F: {matched[alone][matched-final, one].p} and {matched[alone][matched-final, two].p} % of "
        "answers for one and two hops.",
        "one gains 5 points of {parity[parity-2][J minus native, t = n].whole},",
        "{iterations[plain_train][all long J+F].p} % with J and F, {iterations[plain_train][all long F].p} % with F "
        "alone, as in the paper. From new starts it is {iterations[plain_test][all long J+F].p} and "
        "{iterations[plain_test][all long F].p} %:",
        "patterns of the four heads that a search ended with give E in {last[pattern E].p} % (paper "
        "{last[pattern E].paper}). In loops 2 to 8 they give E in {content[pattern E].p} %, and so do patterns of "
        "the wrong loop, in {content[wrong loop E].p} %:",
        f"({_deep('final', replies.FOUR)} and {_deep('final', replies.FOUR2)} % in two seeds), not if it learned a "
        f"deletion a loop ({_deep('stepwise', replies.FOUR)} and {_deep('stepwise', replies.FOUR2)} %).",
        f"J leads neither ({_deep('final', replies.LARGE)} and {_deep('stepwise', replies.LARGE)} %).",
        "SmolLM2 with J is right at eight transfers in {walks[5 8].p} % "
        "{walks[5 8].i} only",
    ],
    {
        "Read where right answers lie, not at t = n, one of three backbones loses by J,": _timing,
        "Three models of 16M give E in the last loop or in all.": lambda known: min(known["small"]) > 0.5,
        "No search for heads passed all of its steps in any of the four models.":
            lambda known: not any(known["passed"]),
        "With eight loops J leads both.": lambda known: min(
            known["antonyms"][form][replies.EIGHT].deep.row.estimate.value for form in ("final", "stepwise")
        ) > 0.9,
    },
)  # fmt: skip


def _failed(evidence: Evidence) -> Known:
    every = letters.record(evidence, letters.SMOLLM2, CONTENT, letters.EVERY)
    large, small = (letters.record(evidence, name, STEERING) for name in (letters.SMOLLM2, letters.FOUR[1]))
    return {
        "matched": walks.SUPERVISED.known(evidence), "content": letters.answers(evidence, every),
        "large": Found.of(evidence, large, "letters.steering", "condition"),
        "small": Found.of(evidence, small, "letters.steering", "condition"),
    }  # fmt: skip


FAILED = Section(
    README, "Failed controls", _failed,
    [
        "J without F gives {matched[alone][matched-final, one].p} and {matched[alone][matched-final, two].p} % "
        "of the one- and two-hop targets.",
        "patterns of the wrong loop give the answer E in {content[wrong loop E].k} of {content[wrong loop E].n} pairs, "
        "the right ones in {content[pattern E].k}; values give D in {content[values D].k}, outputs in "
        "{content[output D].k}.",
        "patterns of the wrong loop rescue {large[wrong loop].k} of {large[wrong loop].n}, the right ones "
        "{large[rescue].k}; unsteered patterns at the other heads of these layers leave "
        "{large[complement damage].k}, at the chosen ones {large[damage].k}.",
        "at all other heads, they leave {small[comparison damage].k} of {small[comparison damage].n}.",
    ],
)  # fmt: skip


# ---- speed -----------------------------------------------------------------------------------------------------------


def _json(*path: str) -> Any:
    return json.loads(ROOT.joinpath("results", *path).read_text(encoding="utf-8"))


def _two(share: float) -> str:
    """Per cent with two decimals, and 100 as it is."""
    return "100" if share == 1 else f"{100 * share:.2f}"


def _speed(_: Evidence) -> Known:
    patching, training = _json("bench", "patching-cpu.json"), _json("bench", "train-h200.json")
    scores = {each["name"]: each for each in _json("training", "d8l6-3-5-score.json")["scores"]}
    maps = [each["accuracy"] for name, each in scores.items() if "@" in name]
    return {
        "cases": {
            each["case"]: {
                "runs": each["programs"], "plain": f"{each['plain_s']:.2f}", "ours": f"{each['ours_s']:.3f}",
                "ratio": f"{each['ratio']:.1f}", "plain_work": f"{each['plain_work']:.1f}",
                "our_work": f"{each['ours_work']:.2f}", "apart": f"{each['max_abs_diff']:.0e}",
            }
            for each in patching["cases"]
        },
        "torch": [".".join(each["torch"].split(".")[:2]) for each in (patching, training)],
        "trained": {
            each["case"]: {
                "eager": f"{each['eager_ms'] or 0:.1f}", "ours": f"{each['ours_ms']:.2f}",
                "ratio": f"{each['ratio'] or 0:.1f}", "updates": f"{each['updates']:,}",
                "seconds": f"{each['projected_s']:.1f}", "whole": f"{each['projected_s']:.0f}",
            }
            for each in training["cases"]
        },
        "scores": [
            {key: _two(scores[f"d8l6-{seed}"][key]) for key in ("accuracy", "low", "high")} for seed in (3, 4, 5)
        ],
        "graphs": scores["d8l6-3"]["graphs"], "least": f"{100 * min(maps):.1f}", "most": _two(max(maps)),
        "n": f"{scores['one-1@d8l6-3']['n']:,}", "maps": len(maps),
    }  # fmt: skip


def _sweeps(_: Evidence) -> Known:
    return {
        "sweeps": {
            each["case"]: {
                "cells": each["cells"], "plain": f"{each['plain_s']:.1f}",
                "hand": f"{min(each['one_by_one_s'], each['by_hand_s']):.2f}", "ours": f"{each['ours_s']:.2f}",
                "ratio": f"{each['plain_s'] / each['ours_s']:.1f}", "ahead": f"{each['ratio']:.1f}",
            }
            for each in _json("bench", "sweeps-cpu.json")["sweeps"]
        }
    }  # fmt: skip


def _counted(_: Evidence) -> Known:
    cases = _json("bench", "operations.json")["cases"]
    return {
        "counted": {
            each["work"]: {key: f"{each[key]:,}" for key in ("cells", "operations", "products")} for each in cases
        }
    }  # fmt: skip


def _operations(name: str) -> str:
    return table_row(name, *(f"{{counted[{name}][{each}]}}" for each in ("cells", "operations", "products")))


OPERATIONS = Section(
    PERFORMANCE, "Operations", _counted,
    [
        *map(_operations, ("looped: heads", "looped: stream", "short: heads", "short: stream", "deep: one run")),
        *map(_operations, ("deep: heads", "deep: patterns", "deep: stream", "deep: heads in all rows")),
    ],
)  # fmt: skip


def _sweep(name: str, about: str) -> str:
    cells, plain, hand, ours, ratio, ahead = (
        f"{{sweeps[{name}][{each}]}}" for each in ("cells", "plain", "hand", "ours", "ratio", "ahead")
    )
    return table_row(f"{name} ({about})", cells, plain, hand, f"**{ours}**", f"**{ratio}**", f"**{ahead}**")


SWEEPS = Section(
    PERFORMANCE, "Sweeps on a CPU", _sweeps,
    [
        _sweep("looped: heads", "12 layers, width 512, four loops, 64 tokens"),
        _sweep("looped: stream", "the same, four rows"),
        _sweep("short: heads", "SmolLM2-135M's shape, one loop, five tokens"),
        _sweep("short: stream", "the same, every row"),
    ],
    {"In none of them is the way by hand quicker.": lambda known: all(
        float(each["ahead"]) > 1 for each in known["sweeps"].values()
    )},
)  # fmt: skip


def _case(name: str) -> str:
    cells = ("runs", "plain", "ours", "ratio", "plain_work", "our_work", "apart")
    return table_row(name, *(f"{{cases[{name}][{each}]}}" for each in cells)).replace(
        f"{{cases[{name}][ratio]}}", f"**{{cases[{name}][ratio]}}**"
    )


def _trained(label: str, case: str, whole: str) -> str:
    times = [f"{{trained[{case}][{each}]}} ms" for each in ("eager", "ours")]
    return table_row(label, *times, f"**{{trained[{case}][ratio]}}**", whole)


PATCHING = Section(
    README, "Speed of patching", _speed,
    [
        "`loopscope bench patching`, two CPU cores, torch {torch[0]},",
        *map(_case, ("head subsets", "48-cell sweep", "mixed strings", "ten starts", "mechanism battery")),
    ],
)  # fmt: skip

TRAINING = Section(
    PERFORMANCE, "Speed of training", _speed,
    [
        "one NVIDIA H200, torch {torch[1]}, one run",
        _trained(
            "D8L6 backbones, 8 seeds side by side", "d8l6, 8 seeds",
            "{trained[d8l6, 8 seeds][updates]} updates of all eight in {trained[d8l6, 8 seeds][whole]} s",
        ),
        _trained(
            "maps `one` and `two`, two fits each, on one backbone", "one+two, 4 fits",
            "{trained[one+two, 4 fits][updates]} updates of all four in {trained[one+two, 4 fits][seconds]} s",
        ),
        "| parity backbones, 3 seeds, 20 calls | - | {trained[parity, 3 seeds][ours]} ms | - | "
        "{trained[parity, 3 seeds][updates]} updates of all three in {trained[parity, 3 seeds][whole]} s |",
        "on {graphs} held-out rings x 10 starts in {scores[0][accuracy]} %, {scores[1][accuracy]} % and "
        "{scores[2][accuracy]} % (intervals over graphs: {scores[0][low]}-{scores[0][high]}, "
        "{scores[1][low]}-{scores[1][high]}, {scores[2][low]}-{scores[2][high]}); twelve maps fitted to them reach "
        "their target in {least} % to {most} % of {n} held-out instances",
    ],
    {"twelve maps fitted to them": lambda known: known["maps"] == 12},
)  # fmt: skip

SECTIONS = (MEASURED, BEYOND, FAILED, PATCHING, SWEEPS, OPERATIONS, TRAINING)
