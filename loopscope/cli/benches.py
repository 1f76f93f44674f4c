"""Benchmarks of this machine."""

from __future__ import annotations

from dataclasses import asdict

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table
from loopscope.cli.display import spinner
from loopscope.cli.lm_tuning import Changes, Name
from loopscope.cli.options import Device, ModelFolder
from loopscope.cli.threads import SMALL, choose_threads, weights_in

bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine: the plain way beside ours.")
app.add_typer(bench_app, name="bench")


@bench_app.command("patching")
def bench_patching(as_json: AsJson = False) -> None:
    """Patching sweeps the plain way (one full run each, as hook-based tools do) and by the executor."""
    import torch

    from loopscope.cli.bench import patching as bench

    choose_threads(SMALL)
    with spinner() as log:
        timings = bench.bench_patching(log)
    if as_json:
        machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        return print_json({**machine, "cases": [asdict(t) for t in timings]})
    print_table(
        f"Patching, {torch.get_num_threads()} threads; work in forward-equivalents",
        ("case", "examples", "runs", "plain s", "ours s", "ratio", "plain work", "our work", "largest difference"),
        (
            (t.case, t.examples, t.programs, f"{t.plain_s:.2f}", f"{t.ours_s:.3f}", f"{t.ratio:.1f}",
             f"{t.plain_work:.2f}", f"{t.ours_work:.2f}", f"{t.max_abs_diff:.1e}")
            for t in timings
        ),
    )  # fmt: skip


@bench_app.command("train")
def bench_train(device: Device = "auto", as_json: AsJson = False) -> None:
    """Training: the plain eager loop of a recipe, and ours.  On a CPU the tiny recipes, on a GPU those of the paper."""
    from loopscope.cli.bench.training import bench_training
    from loopscope.training.job import pick_device

    chosen = pick_device(device)
    choose_threads(SMALL)
    with spinner() as log:
        machine, timings = bench_training(chosen, log)
    if as_json:
        return print_json({**asdict(machine), "cases": [asdict(t) for t in timings]})
    peak = f", bf16 peak {machine.peak_tflops:.0f} TFLOP/s" if machine.peak_tflops else ""
    print_table(
        f"Training on {machine.device}{peak}; ms for one member and update",
        ("case", "eager ms", "ours ms", "ratio", "TFLOP/s", "of peak", "updates", "whole run s", "GiB"),
        (
            (t.case, _number(t.eager_ms, ".2f"), f"{t.ours_ms:.3f}", _number(t.ratio, ".1f"), f"{t.tflops:.3g}",
             _number(t.share_of_peak, ".0%"), f"{t.updates:,}", f"{t.projected_s:.0f}", _number(t.memory_gib, ".1f"))
            for t in timings
        ),
    )  # fmt: skip


@bench_app.command("tune")
def bench_tune(
    folder: ModelFolder,
    recipe: Name = "smol-letter",
    changes: Changes = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Updates of a language model: the plain way, with compiled layers, with captured passes; a CPU has the first."""
    from loopscope.cli.bench.tuning import bench_tuning
    from loopscope.studies.language.recipes import recipe as named
    from loopscope.training.job import pick_device

    asked, chosen = named(recipe, changes or ()), pick_device(device)
    choose_threads(weights_in(folder))
    with spinner() as log:
        found = bench_tuning(folder, asked, chosen, log=log)
    if as_json:
        return print_json({"recipe": recipe, "device": chosen.type, "ways": [asdict(each) for each in found]})
    print_table(
        f"An update of {recipe} on {chosen.type}",
        ("way", "ms", "tokens", "tokens/s", "ratio", "last loss"),
        (
            (each.way, f"{1e3 * each.seconds:.1f}", f"{each.tokens:,}", f"{each.tokens / each.seconds:,.0f}",
             f"{each.ratio:.1f}", f"{each.loss:.4f}")
            for each in found
        ),
    )  # fmt: skip


@bench_app.command("threads")
def bench_threads(as_json: AsJson = False) -> None:
    """The same work with one thread, two, four, ... (with --threads N: up to N), as ratios to one thread."""
    import torch

    from loopscope.cli.bench import threads as bench

    most = torch.get_num_threads()
    with spinner() as log:
        found = bench.bench_threads(most, log=log)
    if as_json:
        return print_json({"threads": most, "torch": torch.__version__, "cases": [asdict(each) for each in found]})
    counts = list(found[0].ratios)[1:]
    print_table(
        f"Up to {most} threads: how many times faster than one",
        ("case", "numbers", "1: ms", *(f"{count}" for count in counts), "chosen"),
        (
            (each.case, f"{each.numbers:,}", f"{each.one_ms:.2f}", *(f"{each.ratios[count]:.2f}" for count in counts),
             each.chosen)
            for each in found
        ),
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
