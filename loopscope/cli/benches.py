"""Benchmarks of this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table
from loopscope.cli.display import spinner
from loopscope.cli.lm_tuning import Changes, Name
from loopscope.cli.options import Device, ModelFolder
from loopscope.cli.threads import SMALL, choose_threads, weights_in

bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine: the plain way beside ours.")
app.add_typer(bench_app, name="bench")


@bench_app.command("patching")
def bench_patching(device: Device = "cpu", as_json: AsJson = False) -> None:
    """Patching sweeps the plain way (one full run each, as hook-based tools do), by hand with a cache, and by us.

    On a GPU the small model alone; `bench large` has language models there.
    """
    import torch

    from loopscope.cli.bench import patching as bench
    from loopscope.cli.bench.single import bench_single
    from loopscope.cli.bench.sweeping import bench_sweeps
    from loopscope.training.job import pick_device

    chosen = pick_device(device)
    choose_threads(SMALL)
    with spinner() as log:
        timings = bench.bench_patching(log, chosen)
        sweeps = bench_sweeps(log) if chosen.type == "cpu" else []
        single = list(bench_single(log)) if chosen.type == "cpu" else []
    if as_json:
        machine = {"device": chosen.type, "threads": torch.get_num_threads(), "torch": torch.__version__}
        return print_json({**machine, "cases": [asdict(t) for t in timings], "sweeps": [asdict(t) for t in sweeps],
                           "single": [asdict(t) for t in single]})  # fmt: skip
    print_table(
        f"Patching, {chosen.type}, {torch.get_num_threads()} threads; work in forward-equivalents",
        ("case", "examples", "runs", "plain s", "ours s", "ratio", "plain work", "our work", "largest difference"),
        (
            (t.case, t.examples, t.programs, f"{t.plain_s:.2f}", f"{t.ours_s:.3f}", f"{t.ratio:.1f}",
             f"{t.plain_work:.2f}", f"{t.ours_work:.2f}", f"{t.max_abs_diff:.1e}")
            for t in timings
        ),
    )  # fmt: skip
    if not sweeps:
        return None
    print_table(
        "Sweeps of looped Llamas, CPU seconds; by hand with a cache: a cell at a time, a layer's heads at a time",
        ("case", "cells", "plain", "a cell", "a layer", "ours", "plain: ours", "hand: ours", "largest difference"),
        (
            (t.case, t.cells, f"{t.plain_s:.1f}", f"{t.one_by_one_s:.2f}", f"{t.by_hand_s:.2f}", f"{t.ours_s:.2f}",
             f"{t.plain_s / t.ours_s:.1f}", f"{t.ratio:.1f}", f"{t.max_abs_diff:.1e}")
            for t in sweeps
        ),
    )  # fmt: skip
    print_table(
        "Single runs of looped Llamas, CPU seconds; the plain way: whole runs with what a hook takes from another",
        ("case", "plain", "ours", "ratio", "largest difference"),
        (
            (t.case, f"{t.plain_s:.3f}", f"{t.ours_s:.3f}", f"{t.ratio:.2f}", f"{t.max_abs_diff:.1e}")
            for t in single
        ),
    )  # fmt: skip


@bench_app.command("operations")
def bench_operations(as_json: AsJson = False) -> None:
    """Count the operations and matrix products of sweeps: what a GPU waits for, whatever its speed."""
    import torch

    from loopscope.cli.bench import operations as bench

    choose_threads(SMALL)
    with spinner() as log:
        found = list(bench.bench_operations(log))
    if as_json:
        return print_json({"torch": torch.__version__, "cases": [asdict(each) for each in found]})
    return print_table(
        "Operations of torch but for views, and matrix products among them",
        ("work", "cells", "operations", "products"),
        ((each.work, f"{each.cells:,}", f"{each.operations:,}", f"{each.products:,}") for each in found),
    )


@bench_app.command("large")
def bench_large(
    shape: Annotated[str, typer.Option(help="2.6b, 135m or tiny: the size of the looped Llama.")] = "tiny",
    precision: Annotated[str, typer.Option(help="Of weights and states: bf16 or fp32.")] = "bf16",
    decoding: Annotated[bool, typer.Option(help="Also tokens per second of decoding.")] = True,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Keep measurements here, case by case; those that are there are not repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Runs, sweeps, long texts and decoding at the size of a released model, with random weights."""
    from loopscope.cli.bench import large as bench
    from loopscope.cli.bench.timing import machine
    from loopscope.execute.memory import said
    from loopscope.training.job import pick_device

    chosen, asked = pick_device(device), bench.shape_named(shape)
    dtype = bench.precision_named(precision)
    choose_threads(SMALL)
    with spinner() as log:
        kept = bench.Kept(out, {**asdict(machine(chosen, log)), "shape": shape, "precision": precision})
        for timing in bench.bench_large(asked, chosen, dtype, log, [each.case for each in kept.cases]):
            kept.add(timing)
        if decoding:
            for each in bench.bench_decoding(asked, chosen, dtype, log, [each.batch for each in kept.decoding]):
                kept.add(each)
    if as_json:
        return print_json(kept.to_dict())
    print_table(
        f"{shape} in {precision} on {kept.about['device']}; work in forward-equivalents",
        ("case", "cells", "plain s", "ours s", "ratio", "work", "logits apart", "of spread", "peak", "foreseen"),
        (
            (t.case, f"{t.cells:,}", _number(t.plain_s, ".3g"), f"{t.ours_s:.3g}", _number(t.ratio, ".1f"),
             _number(t.work, ".3g"), _number(t.apart, ".1e"), _number(t.spread, ".2g"),
             "-" if t.peak is None else said(t.peak), "-" if t.foreseen is None else said(t.foreseen))
            for t in kept.cases
        ),
    )  # fmt: skip
    print_table(
        "Decoding, tokens per second",
        ("way", "prompts at a time", "loops", "tokens/s"),
        ((t.way, t.batch, t.loops, f"{t.tokens_s:,.0f}") for t in kept.decoding),
    )


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


@bench_app.command("sharing")
def bench_sharing(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder of a looped language model, whose tests are timed, too.")
    ] = None,
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(help="About so long is each case timed with one worker.")] = 40.0,
    as_json: AsJson = False,
) -> None:
    """Jobs on one device: by one worker, then by two that share it (on a GPU with needs.gpus=0.5)."""
    from loopscope.cli.bench import sharing as bench
    from loopscope.cli.bench.timing import machine
    from loopscope.training.job import pick_device

    chosen = pick_device(device)
    with spinner() as log:
        found = list(bench.bench_sharing(chosen, folder, seconds, log))
        here = machine(chosen)
    if as_json:
        return print_json({**asdict(here), "cases": [asdict(each) for each in found]})
    print_table(
        f"Workers that share {here.device}",
        ("case", "a job", "workers", "jobs", "seconds", "ratio"),
        (
            (each.case, each.about, each.workers, each.jobs, f"{each.seconds:.1f}", f"{each.ratio:.2f}")
            for each in found
        ),
        left=2,
    )  # fmt: skip


@bench_app.command("view")
def bench_view(
    model: Annotated[
        str | None, typer.Argument(help="A zoo name, a model folder or OWNER/NAME of the hub; default: d8l6-5.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How long the explorer's page waits: J switched, a patch, a sweep, the first answer of all."""
    import torch

    from loopscope.cli.bench import viewing as bench
    from loopscope.view.shown_model import MAIN_MODEL, open_model

    with spinner() as log:
        log("loading the model")
        subject = open_model(MAIN_MODEL if model is None else model)
        choose_threads(subject.numbers)
        found = bench.bench_view(subject, log)
    if as_json:
        machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        return print_json({**machine, "cases": [asdict(each) for each in found]})
    print_table(
        "What the page waits for, in milliseconds; each question is a new one",
        ("case", "what", "asked", "median", "longest", "CPU", "aim"),
        (
            (each.case, each.about, each.rounds, f"{1e3 * each.median_s:.0f}", f"{1e3 * each.longest_s:.0f}",
             f"{1e3 * each.cpu_s:.0f}", "-" if each.aim_s is None else f"{1e3 * each.aim_s:.0f}")
            for each in found
        ),
        left=2,
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
