"""The maps J: how they start, what they compute, how they merge, and how they live on disk."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from scipy import stats
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.maps import (
    CONFIG_FILE,
    FAMILIES,
    FORMAT,
    WEIGHTS_FILE,
    AffineMap,
    Dense,
    DiagonalLowRank,
    ResidualLowRank,
    load_map,
    make_map,
    map_files,
    map_key,
    save_map,
    saved_map_key,
)

SETTINGS: dict[str, dict[str, int]] = {
    "diagonal-low-rank": {"width": 12, "rank": 3},
    "residual-low-rank": {"width": 12, "rank": 5},
    "dense": {"width": 12},
}
families = pytest.mark.parametrize("family", SETTINGS)


def fresh(family: str) -> AffineMap:
    return make_map(family, **SETTINGS[family])


def far_from_identity(family: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> AffineMap:
    step = fresh(family)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    return step.to(dtype)


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# Beginnings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "count"),
    [
        (lambda: DiagonalLowRank(256, 48), 25_088),
        (lambda: Dense(256), 65_792),
        (lambda: ResidualLowRank(2048, 128), 526_336),
        (lambda: Dense(2048), 4_196_352),
    ],
)
def test_parameter_counts_of_the_papers_maps(step: Callable[[], AffineMap], count: int) -> None:
    assert sum(p.numel() for p in step().parameters()) == count


@pytest.mark.parametrize("step", [DiagonalLowRank(256, 48), ResidualLowRank(256, 32), Dense(256)])
def test_every_family_starts_as_the_identity_to_the_last_bit(step: AffineMap) -> None:
    h = torch.randn(5, 7, 256) * torch.logspace(-20, 20, 256)
    assert torch.equal(step(h), h)
    assert torch.equal(step(h[0, 0]), h[0, 0])
    assert torch.equal(step.linear(), torch.eye(256))
    assert (step.b == 0).all()


@pytest.mark.parametrize(("std", "expected"), [(None, 1 / 16), (0.02, 0.02)])
def test_diagonal_low_rank_draws_a_normal_a(std: float | None, expected: float) -> None:
    step = DiagonalLowRank(256, 48, std=std)
    values = step.A.detach().double().flatten().numpy()
    assert values.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * values.size))
    assert stats.kstest(values / expected, "norm").pvalue > 1e-3
    assert (step.B == 0).all()
    assert (step.D == 1).all()


def test_residual_low_rank_draws_a_as_a_linear_layer_does() -> None:
    step = ResidualLowRank(2048, 128)
    values = step.A.detach().double().flatten().numpy() * math.sqrt(2048)
    assert abs(values).max() <= 1 + 1e-6
    assert stats.kstest(values, stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert (step.B == 0).all()
    torch.manual_seed(5)
    linear = torch.nn.Linear(64, 8, bias=False)
    torch.manual_seed(5)
    assert torch.equal(ResidualLowRank(64, 8).A, linear.weight.T)


@pytest.mark.parametrize("make", [DiagonalLowRank, ResidualLowRank])
def test_a_seed_fixes_the_draw_and_leaves_the_global_generator_alone(make: Callable[..., Any]) -> None:
    before = torch.get_rng_state()
    first, again, other = make(64, 8, seed=3), make(64, 8, seed=3), make(64, 8, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.A, again.A)
    assert not torch.equal(first.A, other.A)
    unseeded = make(64, 8)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)  # as every test starts
    assert torch.equal(make(64, 8).A, unseeded.A)


@families
def test_gradients_reach_every_parameter(family: str) -> None:
    step = fresh(family)
    h, target = torch.randn(40, 12), torch.randn(40, 12)
    optimizer = torch.optim.SGD(step.parameters(), lr=0.1)
    for update in range(2):
        optimizer.zero_grad()
        (step(h) - target).square().sum().backward()
        for name, parameter in step.named_parameters():
            assert parameter.grad is not None
            # B = 0 at the start keeps A where it is for exactly one update.
            assert bool(parameter.grad.abs().sum() > 0) == (name != "A" or update > 0), name
        optimizer.step()


@pytest.mark.parametrize("make", [DiagonalLowRank, ResidualLowRank])
@pytest.mark.parametrize(("rank", "near"), [(0, 1), (-2, 1), (13, 12), (1000, 12)])
def test_rank_must_fit_the_width(make: Callable[..., Any], rank: int, near: int, refused: Callable[..., str]) -> None:
    message = refused(InputError, make, 12, rank)
    assert message == f"rank {rank} does not fit width 12: 1..12 (nearest: {near})"
    assert make(12, near).rank == near


@families
@pytest.mark.parametrize("width", [0, -4])
def test_width_must_be_positive(family: str, width: int, refused: Callable[..., str]) -> None:
    message = refused(InputError, lambda: make_map(family, **{**SETTINGS[family], "width": width}))
    assert message == f"a map needs width 1 or more, not {width}"


def test_families_are_found_by_name(refused: Callable[..., str]) -> None:
    assert {name: type(fresh(name)) for name in SETTINGS} == FAMILIES
    message = refused(InputError, make_map, "diagonal")
    assert "unknown map family 'diagonal'; there are diagonal-low-rank, residual-low-rank, dense" in message
    assert message.endswith("(nearest: diagonal-low-rank)")


# What they compute ---------------------------------------------------------------------------------------------------


def by_definition(step: AffineMap, h: Tensor) -> Tensor:
    """J(h) for one row, term by term."""
    if isinstance(step, Dense):
        return torch.stack([sum(h[i] * step.W[i, j] for i in range(len(h))) + step.b[j] for j in range(len(h))])
    low = [sum(h[i] * step.A[i, r] for i in range(len(h))) for r in range(step.rank)]
    kept = step.D if isinstance(step, DiagonalLowRank) else torch.ones_like(h)
    return torch.stack(
        [h[j] * kept[j] + sum(low[r] * step.B[r, j] for r in range(step.rank)) + step.b[j] for j in range(len(h))]
    )


@families
@torch.no_grad()
def test_maps_follow_their_formula_on_every_row(family: str) -> None:
    step = far_from_identity(family)
    h = states(2, 3, 12)
    slow = torch.stack([by_definition(step, row) for row in h.flatten(0, 1)]).unflatten(0, (2, 3))
    torch.testing.assert_close(step(h), slow, rtol=0, atol=1e-12)
    torch.testing.assert_close(h @ step.linear() + step.b, slow, rtol=0, atol=1e-12)


@families
@torch.no_grad()
def test_a_merged_map_is_the_same_map(family: str) -> None:
    step, h = far_from_identity(family), states(5, 12)
    merged = step.merge()
    assert type(merged) is Dense
    torch.testing.assert_close(merged(h), step(h), rtol=0, atol=1e-12)
    before = merged(h)
    for parameter in step.parameters():
        parameter.zero_()
    assert torch.equal(merged(h), before)  # a copy, not a view


@families
@pytest.mark.parametrize("after", SETTINGS)
@torch.no_grad()
def test_one_map_after_another_is_one_dense_map(family: str, after: str) -> None:
    one, two, h = far_from_identity(family, 1), far_from_identity(after, 2), states(5, 12)
    torch.testing.assert_close(one.then(two)(h), two(one(h)), rtol=0, atol=1e-11)
    torch.testing.assert_close(two.then(one)(h), one(two(h)), rtol=0, atol=1e-11)
    assert (one.then(two)(h) - two.then(one)(h)).abs().max() > 0.1  # the order matters


@torch.no_grad()
def test_three_maps_may_be_joined_in_any_grouping() -> None:
    a, b, c = (far_from_identity(family, seed) for seed, family in enumerate(SETTINGS))
    h = states(5, 12)
    torch.testing.assert_close(a.then(b).then(c)(h), c(b(a(h))), rtol=0, atol=1e-10)
    torch.testing.assert_close(a.then(b.then(c))(h), c(b(a(h))), rtol=0, atol=1e-10)


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_merged_maps_keep_the_number_type_and_can_be_trained(family: str, dtype: torch.dtype) -> None:
    step = far_from_identity(family, dtype=dtype)
    for merged in (step.merge(), step.then(step)):
        assert {p.dtype for p in merged.parameters()} == {dtype}
        assert all(p.requires_grad and p.is_leaf for p in merged.parameters())


def test_maps_of_different_width_cannot_follow_each_other(refused: Callable[..., str]) -> None:
    assert refused(InputError, Dense(4).then, Dense(5)) == "maps of width 4 and 5 cannot follow each other"


# On disk -------------------------------------------------------------------------------------------------------------


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@families
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_map_acts_in_its_own_precision_on_states_of_any(family: str, dtype: torch.dtype) -> None:
    step = far_from_identity(family, dtype=torch.float32)
    h = states(4, 12).to(dtype)
    found = step(h)
    assert found.dtype == dtype
    assert torch.equal(found, step(h.float()).to(dtype))


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16])
def test_what_is_saved_comes_back_bit_for_bit(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    step = far_from_identity(family, dtype=dtype)
    save_map(step, str(tmp_path / "one"))
    before = torch.get_rng_state()
    back = load_map(str(tmp_path / "one"))
    assert torch.equal(torch.get_rng_state(), before)  # loading draws nothing
    assert type(back) is type(step)
    assert back.settings() == step.settings() == SETTINGS[family]
    ours, theirs = dict(step.named_parameters()), dict(back.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        assert theirs[name].dtype == dtype
        assert torch.equal(theirs[name], parameter), name
        assert theirs[name].requires_grad
    h = torch.randn(3, 12, dtype=dtype)
    assert torch.equal(back(h), step(h))


@families
def test_the_folder_holds_two_readable_files(family: str, tmp_path: Path) -> None:
    save_map(fresh(family), tmp_path / "one")
    assert listing(tmp_path) == ["one"]
    assert listing(tmp_path / "one") == [CONFIG_FILE, WEIGHTS_FILE]
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o755
    config = json.loads((tmp_path / "one" / CONFIG_FILE).read_text())
    sums = {WEIGHTS_FILE: hashlib.sha256((tmp_path / "one" / WEIGHTS_FILE).read_bytes()).hexdigest()}
    assert len(config.pop("digest")) == 64
    assert config == {
        "peft_type": "LOOPSCOPE_AFFINE", "format": 2, "family": family, **SETTINGS[family], "sha256": sums,
    }  # fmt: skip


def test_a_loaded_map_no_longer_needs_its_files(tmp_path: Path) -> None:
    step = far_from_identity("dense")
    save_map(step, tmp_path / "one")
    back = load_map(tmp_path / "one")
    weights = tmp_path / "one" / WEIGHTS_FILE
    weights.write_bytes(b"\0" * weights.stat().st_size)
    assert torch.equal(back.linear(), step.linear())


def test_transposed_weights_are_saved_as_they_look(tmp_path: Path) -> None:
    step = Dense(6)
    step.W.data = torch.randn(6, 6).T
    save_map(step, tmp_path / "one")
    assert torch.equal(load_map(tmp_path / "one").linear(), step.W)


@families
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_map_that_is_not_finite_is_not_saved(
    family: str, bad: float, tmp_path: Path, refused: Callable[..., str]
) -> None:
    step = fresh(family)
    name = list(dict(step.named_parameters()))[-1]
    with torch.no_grad():
        dict(step.named_parameters())[name].flatten()[-1] = bad
    assert refused(InputError, save_map, step, tmp_path / "one") == f"map holds NaN or infinity in {name}"
    assert listing(tmp_path) == []


def test_nothing_is_ever_overwritten(tmp_path: Path, refused: Callable[..., str]) -> None:
    save_map(far_from_identity("dense"), tmp_path / "one")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    before = (tmp_path / "one" / WEIGHTS_FILE).read_bytes()
    for name in ("one", "file", "empty"):
        message = refused(InputError, save_map, fresh("dense"), tmp_path / name)
        assert message == f"{tmp_path / name} exists already; a saved map is never overwritten"
    assert (tmp_path / "one" / WEIGHTS_FILE).read_bytes() == before
    assert (tmp_path / "file").read_text() == "mine"
    assert listing(tmp_path / "empty") == []
    assert listing(tmp_path) == ["empty", "file", "one"]


def test_the_parent_must_be_a_folder(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").write_text("mine")
    for parent in ("missing", "file"):
        message = refused(InputError, save_map, fresh("dense"), tmp_path / parent / "one")
        assert message == f"cannot write {tmp_path / parent / 'one'}: there is no folder {tmp_path / parent}"
    assert listing(tmp_path) == ["file"]


class Unwritable(Dense):
    """A map whose settings JSON cannot hold: saving fails after the weights are written."""

    def settings(self) -> dict[str, Any]:
        return {"width": object()}


def test_a_failure_halfway_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"width is a object"):
        save_map(Unwritable(4), tmp_path / "one")
    assert listing(tmp_path) == []


def test_a_link_to_nowhere_is_taken(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "nowhere")
    assert "exists already" in refused(InputError, save_map, fresh("dense"), tmp_path / "one")
    assert listing(tmp_path) == ["one"]


# Checksums -----------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Whitespace of the config may be another's; nothing else may differ anywhere."""
    step = make_map("residual-low-rank", width=2, rank=1, seed=0)
    save_map(step, tmp_path / "one", {"beside.json": b'{"loops": 8}'})
    accepted = 0
    for name in (CONFIG_FILE, WEIGHTS_FILE, "beside.json"):
        file = tmp_path / "one" / name
        whole = file.read_bytes()
        for at, byte in enumerate(whole):
            for other in {byte ^ 1, byte ^ 0x80, byte ^ 0xFF, ord("1"), ord(" ")} - {byte}:
                file.write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
                try:
                    back = load_map(tmp_path / "one")
                except (DamagedError, InputError):
                    continue
                accepted += 1
                assert (name, chr(byte).isspace()) == (CONFIG_FILE, True)
                assert map_key(back) == map_key(step)
        file.write_bytes(whole)
    assert accepted < 40  # the ends of lines, made spaces
    load_map(tmp_path / "one")


def test_files_beside_a_map_are_checked_with_it(tmp_path: Path, refused: Callable[..., str]) -> None:
    save_map(fresh("dense"), tmp_path / "one", {"fitted.json": b"{}"})
    (tmp_path / "one" / "fitted.json").unlink()
    assert "fitted.json: expected a file, found none" in refused(DamagedError, load_map, tmp_path / "one")


def test_checksums_cannot_be_taken_away(tmp_path: Path, refused: Callable[..., str]) -> None:
    """Not by calling the format an older one, and not by leaving them out."""
    save_map(fresh("dense"), tmp_path / "one")
    file = tmp_path / "one" / CONFIG_FILE
    config = json.loads(file.read_text())
    for changed, found in (
        ({**config, "format": 1}, "expected a config of format 1, found digest, which it has not"),
        ({key: value for key, value in config.items() if key != "digest"}, "expected content of digest None"),
        ({key: value for key, value in config.items() if key != "sha256"}, "expected the checksums of format 2"),
        ({**config, "sha256": {}}, "expected content of digest"),
        ({**config, "sha256": {"../one": "0" * 64}}, "expected the checksums of format 2"),
        ({**config, "sha256": [WEIGHTS_FILE]}, "expected the checksums of format 2"),
        ({**config, "width": math.nan}, "expected the checksums of format 2"),
    ):
        file.write_text(json.dumps(changed))
        assert refused(DamagedError, load_map, tmp_path / "one").startswith(f"{file}: {found}")


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_map_has_one_key_in_all_formats(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """By which released records and maps, of format 1, know it: SHA-256 over names and SHA-256 of its two files."""
    step = far_from_identity(family, dtype=dtype)
    save_map(step, tmp_path / "two")
    shutil.copytree(tmp_path / "two", tmp_path / "one")
    as_format_1(tmp_path / "one")
    hashes = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (tmp_path / "one").iterdir()}
    known = hashlib.sha256("".join(f"{name} {hashes[name]}\n" for name in sorted(hashes)).encode()).hexdigest()
    assert map_key(step) == known
    for folder in ("one", "two"):
        assert map_key(load_map(tmp_path / folder)) == known
        assert saved_map_key((tmp_path / folder / CONFIG_FILE).read_bytes(), hashes[WEIGHTS_FILE]) == known
    listed = map_files(step, {"fitted.json": b"{}"})[CONFIG_FILE]
    assert saved_map_key(listed, hashes[WEIGHTS_FILE]) == known


# What cannot be loaded -----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A map on disk, to be spoiled: of format 1, where no checksum tells what is wrong before anything else does."""
    save_map(far_from_identity("diagonal-low-rank", dtype=torch.float32), tmp_path / "one")
    return as_format_1(tmp_path / "one")


def as_format_1(folder: Path) -> Path:
    """As maps were written before they had checksums."""
    config = json.loads((folder / CONFIG_FILE).read_text())
    old = {key: value for key, value in config.items() if key not in ("sha256", "digest")} | {"format": 1}
    (folder / CONFIG_FILE).write_text(json.dumps(old, indent=2, sort_keys=True) + "\n")
    return folder


def reconfigure(folder: Path, **changes: object) -> None:
    config = {**json.loads((folder / CONFIG_FILE).read_text()), **changes}
    (folder / CONFIG_FILE).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_a_folder_without_its_files_is_no_map(saved: Path, refused: Callable[..., str]) -> None:
    missing = saved.parent / "nowhere"
    assert refused(InputError, load_map, missing) == f"{missing} is no saved map: it has no {CONFIG_FILE}"
    assert f"it has no {CONFIG_FILE}" in refused(InputError, load_map, saved / CONFIG_FILE)
    (saved / WEIGHTS_FILE).unlink()
    assert refused(InputError, load_map, saved) == f"{saved} is no saved map: it has no {WEIGHTS_FILE}"
    (saved / CONFIG_FILE).unlink()
    (saved / CONFIG_FILE).mkdir()
    assert f"it has no {CONFIG_FILE}" in refused(InputError, load_map, saved)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", "expected JSON, found Expecting value"),
        (b"{", "expected JSON, found Expecting property name"),
        (b'{"format":\n\n', "expected JSON"),
        (b"\xff\xfe\x00", "expected JSON, found 'utf-16-le' codec"),
        (b"[" * 200_000, "expected JSON, found maximum recursion depth"),
        (b'{"rank": 3, "rank": 4}', "expected JSON, found 'rank' twice"),
        (b"[1, 2]", "expected a JSON object, found [1, 2]"),
        (b'"two\\nlines"', r"expected a JSON object, found 'two\nlines'"),
        (b"null", "expected a JSON object, found None"),
    ],
)
def test_garbage_in_the_config_is_named(text: bytes, found: str, saved: Path, refused: Callable[..., str]) -> None:
    (saved / CONFIG_FILE).write_bytes(text)
    message = refused(DamagedError, load_map, saved)
    assert message.startswith(f"{saved / CONFIG_FILE}: {found}")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"format": None}, "expected a format number, found None"),
        ({"format": "1"}, "expected a format number, found '1'"),
        ({"format": True}, "expected a format number, found True"),
        ({"format": 0}, "expected a format number, found 0"),
        ({"family": None}, "unknown map family 'None'"),
        ({"family": "diagonal"}, "unknown map family 'diagonal'; there are diagonal-low-rank"),
        ({"family": ["dense"]}, "unknown map family"),
        ({"family": "dense"}, "settings {'width': 12, 'rank': 3} do not make a dense map"),
        ({"width": None}, "settings {'rank': 3} do not make a diagonal-low-rank map"),
        ({"rank": None}, "settings {'width': 12} do not make a diagonal-low-rank map"),
        ({"width": "12"}, "settings {'width': '12', 'rank': 3} do not make"),
        ({"width": 12.5}, "settings {'width': 12.5, 'rank': 3} do not make"),
        ({"width": 10**18, "rank": 10**18}, "settings {'width': 1000000000000000000"),
        ({"width": -1}, "a map needs width 1 or more, not -1"),
        ({"rank": 13}, "rank 13 does not fit width 12"),
        ({"rank": 0}, "rank 0 does not fit width 12"),
    ],
)
def test_settings_that_make_no_map_are_named(
    changes: dict[str, object], found: str, saved: Path, refused: Callable[..., str]
) -> None:
    reconfigure(saved, **changes)
    assert refused(DamagedError, load_map, saved).startswith(f"{saved / CONFIG_FILE}: {found}")


def test_another_librarys_adapter_is_no_map(saved: Path, refused: Callable[..., str]) -> None:
    (saved / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    assert (
        refused(InputError, load_map, saved)
        == f"{saved} is no saved map: its peft_type is 'LORA', not LOOPSCOPE_AFFINE"
    )


def test_a_newer_format_is_not_guessed_at(saved: Path, refused: Callable[..., str]) -> None:
    reconfigure(saved, format=FORMAT + 1, family="something-new")
    message = refused(InputError, load_map, saved)
    assert message == f"{saved} was written in map format {FORMAT + 1}; this version reads up to {FORMAT}"


def test_weights_cut_off_anywhere_are_noticed(saved: Path, refused: Callable[..., str]) -> None:
    whole = (saved / WEIGHTS_FILE).read_bytes()
    for length in (0, 4, 8, 30, len(whole) // 2, len(whole) - 1):
        (saved / WEIGHTS_FILE).write_bytes(whole[:length])
        message = refused(DamagedError, load_map, saved)
        assert message.startswith(f"{saved / WEIGHTS_FILE}: expected a safetensors file, found ")
    (saved / WEIGHTS_FILE).write_bytes(whole + b"\0")
    refused(DamagedError, load_map, saved)
    (saved / WEIGHTS_FILE).write_bytes(whole)
    load_map(saved)


class Booby:
    """Runs code when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


def test_pickled_weights_are_refused_and_not_run(saved: Path, refused: Callable[..., str]) -> None:
    mark = saved.parent / "exploded"
    torch.save(load_map(saved).state_dict(), saved / WEIGHTS_FILE)
    assert "expected a safetensors file" in refused(DamagedError, load_map, saved)
    (saved / WEIGHTS_FILE).write_bytes(pickle.dumps(Booby(mark)))
    assert "expected a safetensors file" in refused(DamagedError, load_map, saved)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda t: t.pop("B"), "expected B of shape (3, 12), found nothing"),
        (lambda t: t.pop("b"), "expected b of shape (12,), found nothing"),
        (lambda t: t.clear(), "found nothing"),
        (lambda t: t.update(A=torch.zeros(3, 12)), "expected A of shape (12, 3), found (3, 12)"),
        (lambda t: t.update(D=torch.zeros(12, 1)), "expected D of shape (12,), found (12, 1)"),
        (lambda t: t.update(D=torch.zeros(())), "expected D of shape (12,), found ()"),
        (lambda t: t.update(W=torch.zeros(1), V=torch.zeros(1)), "expected no tensor 'V'"),
        (lambda t: t.update(A=t["A"].double()), "expected one floating point type, found torch.float32, torch.float64"),
        (lambda t: t.update({n: x.int() for n, x in t.items()}), "expected one floating point type, found torch.int32"),
        (
            lambda t: t.update({n: x.to(torch.float8_e4m3fn) for n, x in t.items()}),
            "one floating point type, found torch.float8_e4m3fn",
        ),
        (lambda t: t["A"].fill_(math.nan), "holds NaN or infinity in A"),
        (lambda t: t["b"][3:4].fill_(math.inf), "holds NaN or infinity in b"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    spoil: Callable[[dict[str, Tensor]], object], found: str, saved: Path, refused: Callable[..., str]
) -> None:
    tensors = dict(load_map(saved).state_dict())
    spoil(tensors)
    save_file(tensors, saved / WEIGHTS_FILE)
    message = refused(DamagedError, load_map, saved)
    assert message.startswith(str(saved / WEIGHTS_FILE))
    assert found in message


def test_a_wrong_width_takes_no_memory(saved: Path, refused: Callable[..., str]) -> None:
    reconfigure(saved, width=2**33, rank=2**20)  # 32 PiB
    assert "expected b of shape (8589934592,), found (12,)" in refused(DamagedError, load_map, saved)
