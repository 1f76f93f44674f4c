"""The executor: identities that hold for every model, what it costs, and what it refuses."""

from __future__ import annotations

import gc
import itertools
import resource

import pytest
import torch
from torch import Tensor

from loopscope.address import Address, Site, grid
from loopscope.errors import InputError
from loopscope.execute.executor import check_programs, run
from loopscope.execute.memory import CPU_BUDGET, sizes_in_memory
from loopscope.execute.plain import plain_run
from loopscope.execute.runs import Sizes
from loopscope.execute.sweeping import sweep
from loopscope.maps import Dense, DiagonalLowRank
from loopscope.model import LoopedTransformer, ModelConfig, graph_walk_config
from loopscope.program import Call, F, Given, J, Program, Run, h
from loopscope.tasks.graph_walk import GraphWalk, all_starts
from loopscope.tasks.populations import mixed_strings, population
from tests.cored_tiny import config_of, drawn
from tests.tiny import ROWS, VOCABULARY, every_address, tiny_map, tiny_model, tiny_tokens

MAPS = {"one": tiny_map(1), "two": tiny_map(2)}


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


# Identities ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["graph", "parity", "relations"])
def test_identity_patch_changes_nothing_at_any_address(kind: str) -> None:
    model, tokens = tiny_model(kind, dtype=torch.float64), tiny_tokens(3)
    maps = {"one": tiny_map(1, torch.float64)}
    base = F | J("one") | F
    cells = [base.patch(address, base) for address in every_address(2, len(model.layers))]
    result = run(model, tokens, [base, *cells], maps=maps, rows=range(ROWS))
    for cell in cells:
        close(result[cell].logits, result[base].logits, 1e-12)


def test_pattern_and_value_patch_equals_output_patch() -> None:
    model, tokens, other = tiny_model(), tiny_tokens(4), tiny_tokens(4, seed=1)
    source = Run(F**3, "other")
    for layer, head in itertools.product((1, 2), (None, (1,), (0, 3))):
        both = F**3
        for component in ("pattern", "v"):
            both = both.patch(Address(2, Site(layer, component, head)), source)
        output = (F**3).patch(Address(2, Site(layer, "z", head)), source)
        result = run(model, tokens, [both, output], others={"other": other})
        close(result[both].logits, result[output].logits)


def test_query_and_key_patch_equals_pattern_patch() -> None:
    model, tokens, other = tiny_model(), tiny_tokens(4), tiny_tokens(4, seed=1)
    source = Run(F**3, "other")
    for layer, head in itertools.product((1, 2), (None, (2,))):
        both = F**3
        for component in ("q", "k"):
            both = both.patch(Address(2, Site(layer, component, head)), source)
        pattern = (F**3).patch(Address(2, Site(layer, "pattern", head)), source)
        result = run(model, tokens, [both, pattern], others={"other": other})
        close(result[both].logits, result[pattern].logits)


def test_replaced_pattern_keeps_the_receivers_values() -> None:
    """A hand-built attention: every query sees one key fully, so the answer names whose value was read."""
    model, tokens = tiny_model(), tiny_tokens(3)
    site = Site(1, "pattern", None, (-1,))
    looks_at_2 = torch.zeros(ROWS)
    looks_at_2[2] = 1.0
    program = (F**1).patch(Address(1, site), Given("two"))
    keep = ["loop[1].layer[1].row[-1].z", "loop[1].layer[1].row[2].v"]
    trace = run(model, tokens, program, given={"two": looks_at_2[None]}, keep=keep)[program]
    z, v = trace.kept.values()
    close(z, v, 1e-6)


def test_replaced_queries_recompute_the_softmax() -> None:
    model, tokens, other = tiny_model(), tiny_tokens(3), tiny_tokens(3, seed=1)
    program = (F**2).patch("loop[2].layer[2].row[-1].q", Run(F**2, "other"))
    keep = [f"loop[2].layer[2].row[-1].{c}" for c in ("q", "pattern")] + ["loop[2].layer[2].k"]
    trace = run(model, tokens, program, others={"other": other}, keep=keep)[program]
    q, pattern, k = trace.kept.values()
    close(pattern, (q @ k.transpose(-1, -2) * model.layers[1].scale).softmax(-1), 1e-6)  # type: ignore[operator]
    unpatched = run(model, tokens, F**2, keep=keep)[F**2]
    close(k, unpatched.kept[Address.parse("loop[2].layer[2].k")], 1e-6)


def test_patches_change_what_they_should() -> None:
    """No patch is a silent no-op: another input's value at any single place changes the last row's logits."""
    model, tokens = tiny_model(), tiny_tokens(3)
    other = (tokens + 1) % VOCABULARY
    places = [a for a in every_address(2, 2) if a.loop == 1 and a.site.rows in (None, (ROWS - 1,))]
    result = sweep(model, tokens, F**2, places, Run(F**2, "other"), others={"other": other})
    change = (result.logits - result.base).abs().amax((1, 2, 3))
    silent = [str(a) for a, size in zip(places, change.tolist(), strict=True) if size < 1e-6]
    assert silent == []


def test_identity_map_is_a_no_op() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    maps = {"id": DiagonalLowRank(16, 3), "dense": Dense(16)}
    result = run(model, tokens, ["F2 F", "F2 J:id F", "J:dense F2 J:dense F"], maps=maps)
    assert torch.equal(result["F3"].logits, result["F2 J:id F"].logits)
    close(result["F3"].logits, result["J:dense F2 J:dense F"].logits, 1e-6)


def test_wrong_loop_control_takes_another_loop() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    right = (F**3).patch("loop[3].layer[1].resid", F**3)
    wrong = (F**3).patch("loop[3].layer[1].resid", Run(F**3, loop=2))
    result = run(model, tokens, [right, wrong, F**2])
    # Replacing the state entering call 3 by the one entering call 2 gives the two-call answer.
    close(result[wrong].logits, result[F**2].logits)
    assert (result[wrong].logits - result[right].logits).abs().max() > 1e-3


def test_given_state_continues_a_run() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    h2 = plain_run(model, {"main": tokens}, F**2).states["h2"]
    result = run(model, tokens, ["F2 J:one F", "h2 J:one F"], maps=MAPS, state=h2)
    close(result["F2 J:one F"].logits, result["h2 J:one F"].logits)
    patched = (h(2) | F).patch("loop[3].layer[1].z", h(2) | J("one") | F)
    from_tokens = (F**3).patch("loop[3].layer[1].z", "(F2 J:one F)")
    result = run(model, tokens, [patched, from_tokens], maps=MAPS, state=h2)
    close(result[patched].logits, result[from_tokens].logits)


def test_sources_may_be_patched_runs_themselves() -> None:
    """Restoration: break a run by foreign queries, then put one clean component back."""
    model, tokens, other = tiny_model(), tiny_tokens(4), tiny_tokens(4, seed=1)
    broken = (F**2).patch("loop[2].layer[2].row[-1].q", Run(F**2, "other"))
    restored = broken.patch("loop[2].layer[2].row[-1].z", F**2)
    into_clean = (F**2).patch("loop[2].layer[2].row[-1].z", broken)
    result = run(model, tokens, [F**2, broken, restored, into_clean], others={"other": other})
    close(result[restored].logits, result[F**2].logits)
    close(result[into_clean].logits, result[broken].logits)
    assert (result[broken].logits - result[F**2].logits).abs().max() > 1e-3


def test_weights_and_inputs_are_untouched() -> None:
    model, tokens, other = tiny_model(), tiny_tokens(4), tiny_tokens(4, seed=1)
    tensors = [*model.parameters(), *MAPS["one"].parameters(), tokens, other]
    before = [(t._version, t.clone()) for t in tensors]
    cells = [(F**2).patch(a, Run(F | J("one") | F, "other")) for a in every_address(2, 2)[::7]]
    run(model, tokens, cells, maps=MAPS, others={"other": other}, read="all")
    for tensor, (version, copy) in zip(tensors, before, strict=True):
        assert tensor._version == version
        assert torch.equal(tensor, copy)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_memory_is_flat_over_500_runs() -> None:
    """Nothing is left behind: neither Python objects nor tensors nor resident memory grow from run 50 to run 500."""
    model, tokens, other = tiny_model(), tiny_tokens(2), tiny_tokens(2, seed=1)
    program = (F**2).patch("loop[1].layer[2].head[1].row[-1].pattern", Run(F**2, "other"))
    objects, tensors, resident = {}, {}, {}
    for number in range(1, 501):
        run(model, tokens, [F**2, program], others={"other": other})
        if number in (50, 500):
            gc.collect()
            alive = gc.get_objects()
            objects[number] = len(alive)
            dense = [t for t in alive if issubclass(type(t), torch.Tensor) and t.layout == torch.strided]
            tensors[number] = sum(t.nbytes for t in dense)
            resident[number] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert tensors[500] == tensors[50]
    assert objects[500] - objects[50] < 500  # less than one object per run
    assert resident[500] - resident[50] < 16 * 2**20


# Reading and keeping -------------------------------------------------------------------------------------------------


def test_readouts_after_every_call_and_around_every_map() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    program = Program.parse("J:one F2 J:two F")
    plain = plain_run(model, {"main": tokens}, program, maps=MAPS)
    trace = run(model, tokens, program, maps=MAPS, read="all")[program]
    assert list(trace.logits_at) == ["h0", "h0 J:one", "h1", "h2", "h2 J:two", "h3"]
    for point, logits in trace.logits_at.items():
        close(logits, model.read(plain.states[point][:, [-1]]))
    calls = run(model, tokens, program, maps=MAPS, read="calls")[program]
    assert list(calls.logits_at) == ["h1", "h2", "h3"]
    some = run(model, tokens, program, maps=MAPS, read=["h2 J:two", "h1"])[program]
    assert list(some.logits_at) == ["h2 J:two", "h1"]
    assert torch.equal(some.predictions, some.logits_at["h1"].argmax(-1))


def test_only_what_was_asked_is_kept() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    result = run(model, tokens, ["F", "F2"], keep=["loop[2].layer[1].head[3,0].row[-1,2].pattern"])
    assert result["F"].kept == {}
    (kept,) = result["F2"].kept.values()
    assert kept.shape == (3, 2, 2, ROWS)
    plain = plain_run(model, {"main": tokens}, F**2).components[2, 1, "pattern"]
    close(kept, plain[:, [3, 0]][:, :, [-1, 2]])


@pytest.mark.parametrize(("chunk", "stack"), [(1, 1), (7, 3), (64, 64), (None, None)])
def test_chunk_and_stack_sizes_change_nothing(chunk: int | None, stack: int | None) -> None:
    model, tokens, other = tiny_model(), tiny_tokens(9, shared=4), tiny_tokens(9, seed=1)
    places = grid("pattern", loops=(1, 2), layers=(1, 2), heads=range(4), rows=(-1,))
    arguments = {"others": {"other": other}}
    base = sweep(model, tokens, F**2, places, Run(F**2, "other"), **arguments)  # type: ignore[arg-type]
    again = sweep(model, tokens, F**2, places, Run(F**2, "other"), chunk=chunk, stack=stack, **arguments)  # type: ignore[arg-type]
    close(base.logits, again.logits)


def test_a_given_tensor_may_differ_by_example() -> None:
    model, tokens = tiny_model(), tiny_tokens(3)
    values = torch.randn(3, 1, 16, generator=torch.Generator().manual_seed(0))
    program = (F**1).patch("loop[1].layer[2].row[-1].mlp_out", Given("x"))
    result = run(model, tokens, program, given={"x": values}, chunk=2, keep=["loop[1].layer[2].row[-1].mlp_out"])
    (kept,) = result[program].kept.values()
    assert torch.equal(kept, values)


# What it costs, for the shapes of the paper's main model -------------------------------------------------------------


@pytest.fixture(scope="module")
def d8l6() -> LoopedTransformer:
    torch.manual_seed(0)
    return LoopedTransformer(graph_walk_config(10, loops=6))


@pytest.fixture(scope="module")
def wide_maps() -> dict[str, DiagonalLowRank]:
    return {"one": DiagonalLowRank(256, 48), "two": DiagonalLowRank(256, 48)}


def graph_tokens(name: str, graphs: int) -> Tensor:
    """One start per graph, so that the count owes little to shared tokens."""
    rows = population(name).graphs[:graphs]
    return GraphWalk(10).tokens(rows, torch.arange(graphs) % 10)


def test_head_subsets_cost_one_forward(d8l6: LoopedTransformer, wide_maps: dict[str, DiagonalLowRank]) -> None:
    subsets = [c for size in range(1, 5) for c in itertools.combinations(range(4), size)]
    cells = [(F**7).patch(Address(7, Site(2, "pattern", c, (-1,))), F**6 | J("one") | F) for c in subsets]
    work = run(d8l6, graph_tokens("confirmation", 4), cells, maps=wide_maps).work
    assert len(cells) == 15
    assert work.forwards <= 1.2


def test_sweep_of_48_cells_costs_two_forwards_beside_its_source(d8l6: LoopedTransformer) -> None:
    places = grid("pattern", loops=range(1, 7), layers=(1, 2), heads=range(4), rows=(-1,))
    others = {"other": graph_tokens("rings", 4)}
    tokens = graph_tokens("confirmation", 4)
    result = sweep(d8l6, tokens, F**6, places, Run(F**6, "other"), others=others)
    patterns = grid("pattern", loops=range(1, 7), layers=(1, 2), rows=(-1,))
    source = run(d8l6, others["other"], F**6, keep=patterns)
    assert len(places) == 48
    assert result.work.forwards - source.work.forwards <= 2.0


@pytest.mark.parametrize("name", ["huginn", "parcae"])
def test_sweep_of_48_cells_around_a_core_costs_little_more(name: str) -> None:
    """With a prelude before and a coda behind, which every readout goes through: both are counted in a forward."""
    model = drawn(config_of(name) | {"n_layers_in_recurrent_block": 2})
    assert [len(each) for each in (model.prelude, model.layers, model.coda)] == [2, 2, 2]
    tokens, other = torch.randint(96, (2, 4, 35), generator=torch.Generator().manual_seed(0))
    program, places = model.program(6), grid("pattern", loops=range(1, 7), layers=(1, 2), heads=range(4), rows=(-1,))
    result = sweep(model, tokens, program, places, Run(program, "other"), others={"other": other})
    source = run(model, other, program, keep=grid("pattern", loops=range(1, 7), layers=(1, 2), rows=(-1,)))
    assert len(places) == 48
    assert result.work.plain_rows == 4 * 35 * (2 + 6 * 2 + 2)
    assert result.work.forwards - source.work.forwards <= 2.5
    last = plain_run(model, {"main": tokens, "other": other}, program.patch(places[-1], Run(program, "other")))
    torch.testing.assert_close(result.logits[-1][:, 0], last.read("h6")[:, -1], rtol=0, atol=1e-5)


def test_mixed_strings_cost_their_distinct_prefixes(
    d8l6: LoopedTransformer, wide_maps: dict[str, DiagonalLowRank]
) -> None:
    strings = ["".join(map(str, row)) for row in mixed_strings().tolist()]
    names = {"1": "one", "2": "two"}
    programs = [Program(tuple(s for c in string for s in (J(names[c]), F)), start=6) for string in strings]
    prefixes = {string[:n] for string in strings for n in range(1, 9)}
    state = torch.randn(1, 35, 256, generator=torch.Generator().manual_seed(0))
    work = run(d8l6, None, programs, maps=wide_maps, state=state, read="calls").work
    assert len(programs) == 32
    assert work.calls == len(prefixes)


def test_ten_starts_of_a_graph_share_its_rows(d8l6: LoopedTransformer) -> None:
    graphs, starts = all_starts(population("confirmation").graphs[:3])
    tokens = GraphWalk(10).tokens(graphs, starts)
    result = run(d8l6, tokens, "F6")
    assert result.work.forwards <= 0.25
    close(result["F6"].logits[:, 0], d8l6(tokens)[:, -1].detach())


def test_a_patch_before_the_read_rows_reaches_nothing_later_than_needed() -> None:
    """Reading a row before the patched one costs no more than the base run, and equals it."""
    model, tokens = tiny_model(), tiny_tokens(2)
    patched = (F**2).patch("loop[1].layer[1].row[5].z", Run(F | J("one") | F, loop=1))
    both = run(model, tokens, [F**2, patched], rows=(3,), maps=MAPS)
    assert torch.equal(both[patched].logits, both[F**2].logits)
    assert both.work.rows == run(model, tokens, F**2, rows=(3,)).work.rows


def test_the_plan_foresees_the_work() -> None:
    """Without tokens in common, a run computes exactly the rows that the plan counts, aligned inputs included."""
    program = (F**3).patch("loop[2].layer[1].row[-1].pattern", Run(F**3, "other"))
    model, sizes = tiny_model(), Sizes(layers=2, heads=4, rows=ROWS)
    tokens = torch.zeros(1, ROWS, dtype=torch.int64)
    work = run(model, tokens, program, others={"other": tokens + 1}).work
    plan = check_programs([program], sizes)
    assert (work.rows, work.calls) == (plan.rows, plan.calls)
    assert plan.calls == 3 + 2 + 2  # the base run, the source as far as it is needed, two patched calls


def test_kept_activations_hold_no_more_than_themselves() -> None:
    result = run(tiny_model(), tiny_tokens(8), F**2, keep="loop[1].layer[1].row[-1].resid", chunk=3)
    (kept,) = result[F**2].kept.values()
    assert kept.untyped_storage().nbytes() == kept.nbytes


def test_more_patched_runs_mean_fewer_examples_at_a_time(d8l6: LoopedTransformer) -> None:
    """The states of full-row patched runs count towards the memory budget."""
    sizes, cpu = Sizes(layers=2, heads=4, rows=35), torch.device("cpu")

    def chunk(lanes: int) -> int:
        cells = [(F**2).patch(f"loop[1].layer[1].row[{r}].z", F**2) for r in range(lanes)]
        return sizes_in_memory(check_programs(cells, sizes), d8l6, cpu, 100_000, None, None)[0]

    one, many = chunk(1), chunk(30)
    assert one > 2 * many
    held = many * 30 * 35 * 256 * 4  # states of thirty runs that differ in up to 35 rows
    assert held < CPU_BUDGET


# What it refuses -----------------------------------------------------------------------------------------------------

TOKENS = tiny_tokens(3)
OK = {"other": tiny_tokens(3, seed=1)}
NAN = Dense(16)
with torch.no_grad():
    NAN.W[0, 0] = float("nan")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"programs": ["F2", "F2 J:on F"], "maps": MAPS}, "no map named 'on' was given; there are: one, two"),
        ({"programs": "F J:bad F", "maps": {"bad": NAN}}, "map 'bad' holds NaN or infinity in its W"),
        ({"programs": "F F[layer[3].z<-(F2)]"}, "layers 1..2"),
        ({"programs": "F F[layer[1].head[4].z<-(F2)]"}, "nearest: layer[1].head[3].z"),
        ({"programs": "F F[layer[1].row[-8].z<-(F2)]"}, "nearest: layer[1].row[-7].z"),
        ({"programs": "F F[layer[1].row[6,-1].z<-(F2)]"}, "names a row twice"),
        ({"programs": "F[layer[1].z<-(F)@othr]", "others": OK}, "(nearest: other)"),
        ({"programs": "F[layer[1].z<-(F)@other]", "others": {"other": tiny_tokens(2)}}, "is not aligned"),
        ({"programs": "F[layer[1].z<-(F)@other]", "others": {"other": TOKENS[:, :-1]}}, "names rows from the start"),
        ({"programs": "F", "tokens": None, "state": torch.zeros(3, ROWS, 16)}, "starts from tokens, but none were"),
        ({"programs": "F", "others": {"main": TOKENS}}, "taken"),
        ({"programs": "F[layer[1].z<-$x]", "given": {"y": TOKENS}}, "no tensor named 'x' was given; there are: y"),
        ({"programs": "F[layer[1].z<-$x]", "given": {"x": torch.zeros(3, 4, ROWS, 5)}}, "does not fit"),
        ({"programs": "F[layer[1].z<-$x]", "given": {"x": torch.zeros(9, 3, 4, ROWS, 4)}}, "does not fit"),
        ({"programs": "F[layer[1].pattern<-$x]", "given": {"x": torch.full((ROWS, ROWS), 0.1)}}, "attention is causal"),
        ({"programs": "F", "rows": (7,)}, "row 7 does not exist: rows are 0..6 (nearest: 6)"),
        ({"programs": "F", "rows": ()}, "at least one row"),
        ({"programs": "F", "read": "h2"}, "has no point 'h2' (nearest: h1)"),
        ({"programs": "F", "keep": ["loop[1].layer[1].foo"]}, "unknown component 'foo'"),
        ({"programs": "F", "keep": ["loop[1].layer[9].z"]}, "nearest: layer[2].z"),
        ({"programs": "F", "keep": ["loop[5].layer[1].z"]}, "no program has loop 5"),
        ({"programs": "h2 F"}, "'h2 F' starts from a given state h2, but no state was given"),
        ({"programs": "F", "tokens": TOKENS + 6}, "is outside 0..7"),
        ({"programs": "F", "tokens": TOKENS.float()}, "token input 'main' must be"),
        ({"programs": "F", "tokens": TOKENS[0]}, "token input 'main' must be"),
        ({"programs": "h2 F", "tokens": None, "state": torch.zeros(3, ROWS, 9)}, "has width 9, the model 16"),
        ({"programs": "h2 F", "tokens": None}, "nothing to run on"),
        ({"programs": []}, "no program was given"),
        ({"programs": "F", "chunk": 0}, "chunk must be 1 or more, not 0"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(arguments: dict[str, object], says: str) -> None:
    settings = {"tokens": TOKENS, **arguments}
    with pytest.raises(InputError) as caught:
        run(tiny_model(), **settings)  # type: ignore[arg-type]
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_result_names_the_nearest() -> None:
    result = run(tiny_model(), TOKENS, ["F", "F2 J:one F"], maps=MAPS)
    with pytest.raises(InputError, match=r"'F2 J:two F' was not run \(nearest: F2 J:one F\)"):
        result["F2 J:two F"]
    assert list(result) == [Program((F,)), F**2 | J("one") | F]
    assert len(result) == 2


def test_sweep_is_labelled() -> None:
    model, other = tiny_model(), tiny_tokens(3, seed=1)
    places = grid("z", loops=(1, 2), layers=(1, 2))
    result = sweep(model, TOKENS, "F2", map(str, places), "(F2)@other", others={"other": other})
    assert result.addresses == places
    assert result.logits.shape == (4, 3, 1, 5)
    cell = (F**2).patch(places[2], Run(F**2, "other"))
    close(result.logits[2], run(model, TOKENS, cell, others={"other": other})[cell].logits, 1e-6)
    rates = result.rates(result.base.argmax(-1)[:, 0])
    assert set(rates) == set(places)
    assert all(0 <= rate <= 1 for rate in rates.values())
    with pytest.raises(InputError, match="at least one address"):
        sweep(model, TOKENS, "F2", [], F**2)


def test_single_step_programs_and_wide_heads() -> None:
    """A model with one head and one layer, run by a single call given as a bare value."""
    config = ModelConfig(vocabulary=8, classes=5, loops=1, layers=1, width=8, heads=1, mlp=8)
    torch.manual_seed(0)
    model = LoopedTransformer(config)
    result = run(model, TOKENS, Call())
    close(result["F"].logits[:, 0], model(TOKENS)[:, -1].detach())
