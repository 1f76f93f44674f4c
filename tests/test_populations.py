"""Evaluation populations: every fingerprint and every count that is on record, and what must be disjoint is."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys

import pytest
import torch

from loopscope.errors import DamagedError, InputError
from loopscope.tasks import populations as pops
from loopscope.tasks.graph_walk import (
    advance,
    all_starts,
    check_graphs,
    codes_of,
    is_held_out,
    is_ring,
    start_for,
    walk,
)
from loopscope.tasks.populations import held_out, listing, mixed_strings, population, populations

# name: graphs, first row, SHA-256 -- written down by the reference study or worked out from its recipe elsewhere
RECORDED = {
    "selection": (128, "4520937816", "9f7720ba612fa2529e371d4697fac4c696f4f9abe2cf856ea9fa97acc64699d4"),
    "discovery": (32, "0526374891", "82a374c04803699ac520c8462b4361adeb8cac7dcfa07ef4f14bf98a8c51c23f"),
    "confirmation": (512, "7468902153", "909707667e388460392f497bf8a8190bb640c066636a003c8689f8ac2b5b9959"),
    "rings": (512, "1540698372", "e43dfe81b718b0f9dfd7133c4da5feef7e9fe0fc604cd0656a908eb78f470531"),
    "smoke": (4, "9067143528", "66ec140f0a8ea0fa2bc9bb0374bb2e0f5ef7bb5cce5c432f78edf70f695f29d3"),
    "swaps": (24532, "0123584697", "68c9da12e53bf2239a3755742f54be7d8ce90aec3c1dd78f855cdaf6338c4a19"),
    "pairs-2404-receiver": (512, "2463017598", "dfc275b617594a969d8ee1198fc82f65a62a753925246b630a28ba7b25a80c7d"),
    "pairs-2404-giver": (512, "0576483219", "e98940364b938e240f39d2922929c53663cf38994ed262aeec0a3540c333c9f9"),
    "switching-2501": (512, "5801734692", "d0839873240bd984d5e24b1f6124224ac78b9834571f462736eb6c4cc551b06e"),
    "independent-3001": (512, "3197248605", "f663325da631ee348fcde9c9cac91ff0bb61ea6009c7057b29addc0f9451cc3d"),
    "discovery-2608-receiver": (32, "4582167903", "ff326cf0ab2edb481e9225ccf1bd8137369e0089a0e4239ea146e954a2f0d8f0"),
    "discovery-2608-giver": (32, "0246589731", "3a80f95617ed52f5e538dc6bcf7af046f8e581101c124efaf798bbb092e207bd"),
    "pairs-2608-receiver": (512, "1953248760", "e53f07aabf6dae3c5df9695218e5856366654a5bb73a638f3edd788a3102edf9"),
    "pairs-2608-giver": (512, "5418906723", "3e4fd46c13026e649acc59656c684af98aae89956f87e7c46984f25703acd8af"),
    "switching-2608": (512, "5317629084", "85a38a33d8e2387a6ff6c30c6456710cdf587a1ab527db26cf5d942fcc8576e3"),
    "matched-selection": (512, "9641372508", "c0d860c4aacd6fdf2e038a81e6a992a2ca95efcb65232834a1c303dfbf5550ec"),
    "matched-test": (512, "0431528679", "13238982b29e5db18f56caf6c8253152d471b2d284058d0964c0d7618b4d092c"),
    "matched-maps": (2048, "3961527048", "6435d5b507b28db37d76c7bf6c3bbb91c281b6c890dfe6612eed03d177851e3d"),
}

# Sets of which only the size is on record, or nothing: our own eight-node locks and six-node graphs.
SIZES = {
    "reserve": 18543,
    "reserve-after-2403": 17519,
    "pairs-2403-receiver": 512,
    "pairs-2403-giver": 512,
    "smoke-2501": 2,
    "smoke-2608": 2,
    "eight-selection": 512,
    "eight-test": 512,
    "eight-broad": 8192,
    "tiny-selection": 72,
    "tiny-test": 72,
}

# (population, label rule): instances kept over all starts
RECORDED_KEPT = {
    ("selection", "all"): 1280,
    ("selection", "three"): 990,
    ("selection", "five"): 786,
    ("discovery", "all"): 320,
    ("discovery", "three"): 260,
    ("discovery", "five"): 208,
    ("confirmation", "all"): 5120,
    ("confirmation", "three"): 4110,
    ("confirmation", "five"): 3147,
    ("rings", "three"): 5120,
    ("rings", "five"): 5120,
    ("smoke", "three"): 34,
    ("smoke", "five"): 28,
    ("pairs-2403-receiver", "three"): 4112,
    ("pairs-2404-receiver", "crossed"): 4109,
    ("pairs-2404-receiver", "three"): 4044,
    ("switching-2501", "three"): 4116,
    ("switching-2501", "five"): 3200,
    ("independent-3001", "three"): 4183,
    ("independent-3001", "five"): 3175,
    ("discovery-2608-receiver", "crossed"): 256,
    ("pairs-2608-receiver", "crossed"): 4123,
    ("pairs-2608-receiver", "three"): 4111,
    ("switching-2608", "three"): 4149,
    ("matched-selection", "three"): 4094,
    ("matched-test", "three"): 4137,
    ("matched-maps", "three"): 16432,
}

MIXED = (
    "11121122 21112111 22222221 11121121 21121121 11212111 11122112 11111121 "
    "12111112 11111212 21211121 11111222 22111212 12122121 12211112 12111211 "
    "12211111 22222211 12222211 22112121 22221222 21222222 21122222 22112222 "
    "11122221 11211111 12211212 22222212 11122111 11121222 11121212 11121112"
)


def rows(*names):
    """The graphs of these populations as one set; they must not share any."""
    graphs = [row for name in names for row in population(name).rows]
    assert len(set(graphs)) == len(graphs)
    return set(graphs)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_fingerprints(name):
    size, first, sha256 = RECORDED[name]
    text = "\n".join("".join(str(node) for node in row) for row in population(name).graphs.tolist())
    assert text.split("\n")[0] == first
    assert text.count("\n") == size - 1
    assert hashlib.sha256(text.encode()).hexdigest() == sha256
    assert population(name).sha256 == sha256
    assert population(name).source == "reference"


@pytest.mark.parametrize("name", SIZES)
def test_sets_without_a_recorded_fingerprint(name):
    assert len(population(name).rows) == SIZES[name]
    assert population(name).source == "own"


def test_every_population_is_tested_here():
    assert set(pops.NAMES) == RECORDED.keys() | SIZES.keys()


@pytest.mark.parametrize(("name", "rule"), RECORDED_KEPT)
def test_recorded_counts(name, rule):
    assert int(population(name).mask(rule).sum()) == RECORDED_KEPT[name, rule]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("selection", 1280),
        ("confirmation", 4110),
        ("rings", 5120),
        ("pairs-2404-receiver", 4109),
        ("switching-2501", 4116),
        ("independent-3001", 3175),
        ("pairs-2608-receiver", 4123),
        ("matched-test", 4137),
        ("eight-broad", 65536),
    ],
)
def test_kept_is_counted_by_the_populations_own_rule(name, kept):
    assert population(name).kept == kept


@pytest.mark.parametrize(
    ("name", "rings"),
    [
        ("confirmation", 54),
        ("rings", 512),
        ("matched-selection", 44),
        ("matched-test", 66),
        ("matched-maps", 194),
        ("eight-broad", 993),
    ],
)
def test_recorded_numbers_of_single_cycles(name, rings):
    assert int(is_ring(population(name).graphs).sum()) == rings


def test_populations_are_different_graphs_in_the_right_range():
    for each in populations():
        check_graphs(each.graphs, {"eight": 8, "tiny": 6}.get(each.name.split("-")[0], 10))
        assert len(set(each.rows)) == len(each.rows)


def test_masks_follow_all_starts_and_agree_with_going_through_currents():
    """Every current c is reached from exactly one start, so the rule may be asked of starts or of currents."""
    receiver, giver = population("discovery-2608-receiver"), population("discovery-2608-giver")
    graphs, currents = all_starts(receiver.graphs)
    mask = receiver.mask().reshape(-1, 10).gather(1, start_for(graphs, currents).reshape(-1, 10)).flatten()
    by_hand = [
        len({f2[c], f1[(c + 3) % 10], f2[(c + 3) % 10]}) == 3
        for f2, f1 in zip(receiver.rows, giver.rows, strict=True)
        for c in range(10)
    ]
    assert mask.tolist() == by_hand


# ---- disjointness ----------------------------------------------------------------------------------------------------


def test_withheld_from_the_main_backbones():
    names = pops.HELD_OUT["main"]
    assert names == ("selection", "discovery", "confirmation", "rings", "smoke", "swaps")
    withheld = rows(*names)
    assert len(withheld) == len(held_out("main")) == 25720
    assert sorted(int("".join(map(str, row))) for row in withheld) == held_out("main").tolist()
    cohorts = [name for name in pops.NAMES if "-2" in name or "-3" in name]
    assert len(cohorts) == 14
    for name in (*names, *cohorts):
        assert bool(is_held_out(population(name).graphs, held_out("main")).all()), name


def test_withheld_from_the_matched_and_the_eight_node_backbones():
    assert len(rows("matched-selection", "matched-test", "matched-maps")) == 3072
    assert len(held_out("matched")) == 1024
    assert bool(is_held_out(population("matched-test").graphs, held_out("matched")).all())
    assert not bool(is_held_out(population("matched-maps").graphs, held_out("matched")).any())
    assert held_out("eight").tolist() == sorted(
        int("".join(map(str, row)), base=8) for row in rows("eight-selection", "eight-test")
    )
    assert len(held_out("eight")) == 1024


def test_swaps_are_one_swap_away_and_complete():
    """Each swap has an origin in two places from it, and all 45 swaps of each origin are withheld."""
    locks = [population(name).graphs for name in pops.HELD_OUT["main"][:-1]]
    origins = torch.cat(locks[1:3] + locks[4:]).to(torch.uint8)
    withheld = torch.cat([population("swaps").graphs, *locks]).to(torch.uint8)
    one_swap_away = torch.stack([(withheld != origin).sum(dim=1) == 2 for origin in origins])
    assert bool(one_swap_away[:, :24532].any(dim=0).all())
    assert one_swap_away.sum(dim=1).tolist() == [45] * 548


def test_cohorts_of_the_reserve_take_turns():
    first = rows("pairs-2403-receiver", "pairs-2403-giver")
    pairs = rows("pairs-2404-receiver", "pairs-2404-giver")
    switching = rows("smoke-2501", "switching-2501")
    independent = rows("independent-3001")
    for one, other in itertools.combinations([first, pairs, switching, independent], 2):
        assert not one & other
    swaps, reserve, later = rows("swaps"), rows("reserve"), rows("reserve-after-2403")
    assert reserve < swaps
    assert len(swaps - reserve) == 5989
    assert first < reserve
    assert later == reserve - first
    assert len(later - pairs) == 16495
    assert pairs < later
    assert switching < later - pairs
    assert len(swaps - first - pairs - switching) == 21970
    assert independent < swaps


def test_2608_cohorts_are_disjoint_among_themselves_but_overlap_seed_6():
    drawn = rows(*(name for name in pops.NAMES if "2608" in name))
    assert len(drawn) == 1602
    pairs = rows("pairs-2608-receiver", "pairs-2608-giver")
    assert len(pairs & rows("pairs-2404-receiver", "pairs-2404-giver")) == 59
    assert len(rows("switching-2608") & rows("switching-2501")) == 15


# ---- baselines that depend on nothing but the graphs -----------------------------------------------------------------


def copy_u(name, strings):
    """Percent, per call, of (kept instance, string) whose cumulative target f^k(u) is u itself."""
    chosen = population(name)
    graphs, starts = all_starts(chosen.graphs)
    keep = chosen.mask("five")
    path = walk(graphs, advance(graphs, starts, 8), 16)[keep]
    back_at_u = (path == path[:, :1]).double().mean(dim=0)
    return (100 * back_at_u[strings.cumsum(dim=1)].mean(dim=0)).tolist()


def test_copy_u_of_mixed_strings_is_the_papers():
    by_call = copy_u("independent-3001", mixed_strings())
    assert [round(by_call[call - 1], 2) for call in (2, 4, 8)] == [0.00, 14.25, 17.08]


def test_copy_u_of_repeated_maps_is_the_recorded_one():
    one, two = (copy_u("independent-3001", torch.full((1, 8), hops)) for hops in (1, 2))
    # Recorded to one decimal, in one place rounded twice: 465 of 3,175 is 14.646, then 14.65, then 14.7.
    assert one[4] == pytest.approx(100 * 465 / 3175)
    assert one == pytest.approx([0, 0, 0, 0, 14.65, 16.6, 15.9, 16.9], abs=0.05)
    assert two == pytest.approx([0, 0, 16.6, 16.9, 34.2, 16.6, 15.9, 16.9], abs=0.05)


def test_staying_at_f8_on_the_broad_eight_node_sample_scores_what_is_recorded():
    graphs, starts = all_starts(population("eight-broad").graphs)
    path = walk(graphs, starts, 40)
    stays = (path == path[:, 8:9]).double().mean(dim=0)
    assert stays[9:17].mean().item() == pytest.approx(0.3146247864, abs=1e-9)
    assert stays[17:33].mean().item() == pytest.approx(0.3458614349, abs=1e-9)
    assert stays[17:41].mean().item() == pytest.approx(0.3405418396, abs=1e-9)
    assert stays[[9, 12, 20, 32, 40]].tolist() == pytest.approx([0.1275, 0.3816, 0.6335, 0.7547, 0.5028], abs=5e-5)


# ---- mixed strings, listing, errors ----------------------------------------------------------------------------------


def test_mixed_strings():
    strings = ["".join(map(str, string)) for string in mixed_strings().tolist()]
    assert " ".join(strings) == MIXED
    assert hashlib.sha256("\n".join(strings).encode()).hexdigest() == pops.REFERENCE_SHA256["mixed-strings"]
    assert pops.REFERENCE_SHA256["mixed-strings"].startswith("5527ca4bf803")
    first_pairs = [string[:2] for string in strings]
    assert [first_pairs.count(pair) for pair in ("11", "12", "21", "22")] == [13, 7, 5, 7]


def test_listing_has_a_row_for_each_population_and_is_json():
    table = json.loads(json.dumps(listing()))
    assert [row["name"] for row in table] == list(pops.NAMES)
    by_name = {row["name"]: row for row in table}
    confirmation = by_name["confirmation"]
    assert (confirmation["graphs"], confirmation["rule"], confirmation["kept"]) == (512, "three", 4110)
    assert confirmation["sha256"] == RECORDED["confirmation"][2]
    assert by_name["pairs-2404-receiver"]["labels"] == {"all": 5120, "three": 4044, "five": 3091, "crossed": 4109}
    for row in table:
        assert row["kept"] == row["labels"][row["rule"]]
        assert row["about"].endswith(".")


def test_every_fingerprint_is_of_the_reference_or_ours():
    assert len(pops.REFERENCE_SHA256) == 19
    assert not pops.REFERENCE_SHA256.keys() & pops.OWN_SHA256.keys()


def test_other_graphs_under_a_known_name_are_noticed():
    moved = population("smoke").rows[1:] + population("smoke").rows[:1]
    with pytest.raises(
        DamagedError, match=r"^smoke came out different with torch .*: expected sha256 66ec.*, found .*$"
    ):
        pops._checked("smoke", moved)


def test_nobody_can_change_a_population():
    population("smoke").graphs.zero_()
    held_out("matched").zero_()
    mixed_strings().zero_()
    assert pops.fingerprint(population("smoke").graphs.tolist()) == population("smoke").sha256
    assert int(held_out("matched").min()) > 0
    assert pops.fingerprint(mixed_strings().tolist()) == pops.REFERENCE_SHA256["mixed-strings"]


def test_held_out_codes_are_ascending():
    for study in pops.HELD_OUT:
        codes = held_out(study)
        assert bool((codes[1:] > codes[:-1]).all())
    assert bool(torch.isin(codes_of(population("eight-test").graphs), held_out("eight")).all())


def test_unknown_names_are_one_line_with_the_nearest():
    with pytest.raises(InputError, match=r"^no population 'ring' among the 29 there are \(nearest: rings\)$"):
        population("ring")
    with pytest.raises(InputError, match=r"^no study 'mian' among main, matched, eight, tiny \(nearest: main\)$"):
        held_out("mian")
    with pytest.raises(InputError, match=r"^no label rule 'crossed' for population 'rings' \(nearest: .*\)$"):
        population("rings").mask("crossed")
    with pytest.raises(InputError, match=r"^no label rule 'tree' for population 'rings' \(nearest: three\)$"):
        population("rings").mask("tree")


def test_importing_draws_nothing():
    program = (
        "import torch, random, numpy\n"
        "def refuse(*_, **__): raise SystemExit('drew at import')\n"
        "torch.Generator = torch.randperm = torch.rand = random.Random = numpy.random.default_rng = refuse\n"
        "import loopscope.tasks.populations\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
