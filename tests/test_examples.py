"""Tasks of one's own as they are read and held out: files, datasets on disk, mappings; what cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from loopscope.errors import InputError
from loopscope.tasks import TASKS
from loopscope.tasks.drawn import drawn
from loopscope.tasks.examples import Example, Examples, Split, examples, hashed, split
from tests.commands import loopscope

ROW = {"prompt": "1 + 1 =", "answer": "2"}
FULL = {"prompt": "3 + 4 + 1 =", "answer": "1", "steps": 2, "corrupt": "2 + 4 + 1 =", "corrupt_answer": "0",
        "cluster": "3", "split": "train", "source": {"page": 7}}  # fmt: skip


def rows(count: int, **more: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [{"prompt": f"q{at}", "answer": f"a{at}", **{name: of(at) for name, of in more.items()}}
            for at in range(count)]  # fmt: skip


def lines(path: Path, *each: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in each), encoding="utf-8")
    return path


def saved(folder: Path, *each: dict[str, Any]) -> Path:
    """A dataset as `datasets` 2 to 5 write it with `save_to_disk`: one shard for every row."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(each):05}.arrow" for number in range(len(each))]
    for name, row in zip(names, each, strict=True):
        table = pyarrow.Table.from_pylist([row])
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    return folder


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_every_key_is_read_and_others_are_columns(tmp_path: Path) -> None:
    found = examples(lines(tmp_path / "sums.jsonl", FULL, "", ROW))
    full, plain = found
    assert found.name == "sums"
    assert (full.prompt, full.answer, full.steps, full.cluster) == ("3 + 4 + 1 =", "1", 2, "3")
    assert (full.corrupt, full.corrupt_answer, full.split) == ("2 + 4 + 1 =", "0", "train")
    assert full.columns == {"source": {"page": 7}}
    assert full.value("source") == {"page": 7}
    assert full.to_dict() == FULL
    assert plain.where.endswith("sums.jsonl line 3")
    assert plain.steps is None


def test_a_file_with_a_mark_of_bytes_and_ends_of_lines_of_windows_is_read(tmp_path: Path) -> None:
    text = json.dumps({"prompt": "a\u2028b", "answer": "c"}, ensure_ascii=False)
    (tmp_path / "dos.jsonl").write_bytes(f"\ufeff{text}\r\n{text}\r\n".encode())
    assert [each.prompt for each in examples(tmp_path / "dos.jsonl")] == ["a\u2028b"] * 2


def test_the_same_examples_come_from_a_file_python_and_every_dataset_on_disk(tmp_path: Path) -> None:
    given = [{**row, "split": ["train", "test"][at % 2]} for at, row in enumerate(rows(4, n=lambda at: at))]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(given), tmp_path / "all.parquet")
    parts = {name: [{**row, "split": None} for row in given if row["split"] == name] for name in ("train", "test")}
    for name, part in parts.items():
        saved(tmp_path / "dict" / name, *part)
        lines(tmp_path / "plain" / f"{name}.jsonl", *part)
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        table = pyarrow.Table.from_pylist(part)
        pyarrow.parquet.write_table(table, tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet")
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}', encoding="utf-8")
    digest = examples(given).digest
    assert examples(iter(given)).digest == digest
    assert examples(lines(tmp_path / "all.jsonl", *given)).digest == digest
    assert examples(tmp_path / "all.parquet").digest == digest
    assert examples(saved(tmp_path / "saved", *given)).digest == digest
    ordered = examples([*given[::2], *given[1::2]]).digest
    assert examples(tmp_path / "dict").digest == ordered
    assert examples(parts).digest == ordered
    back = examples([*given[1::2], *given[::2]]).digest  # names of files are in order: test, train
    for place in ("plain", "hub"):
        found = examples(tmp_path / place)
        assert [each.split for each in found] == ["test"] * 2 + ["train"] * 2
        assert found.digest == back


def test_tokens_are_examples_too() -> None:
    (found,) = examples([{"prompt": [3, 1, 4], "answer": 1, "corrupt": [2, 7], "corrupt_answer": [8]}])
    assert (found.prompt, found.answer, found.corrupt, found.corrupt_answer) == ((3, 1, 4), (1,), (2, 7), (8,))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt": "a", ', "line 2 is no JSON object: Expecting property name"),
        ('{"prompt": "a", "prompt": "b", "answer": "c"}', "line 2 is no JSON object: 'prompt' twice"),
        ("[1, 2]", "line 2 is no JSON object, but"),
        ({"promt": "a", "answer": "b"}, r"line 2 has no 'prompt'; it has promt, answer \(nearest: promt\)"),
        ({"prompt": "a"}, "line 2 has no 'answer'; it has prompt"),
        ({"prompt": "a", "answer": None}, "line 2 has no 'answer'"),
        ({"prompt": "a", "answer": " "}, "line 2 has an empty answer"),
        ({"prompt": "", "answer": "b"}, "line 2 has an empty prompt"),
        ({"prompt": "a", "answer": 7}, r'line 2: answer is a text where the prompt is one, not 7 \(nearest: "7"\)'),
        ({"prompt": [1, "b"], "answer": 7}, "line 2: 'b' in its prompt is no token"),
        ({"prompt": [1, True], "answer": 7}, "line 2: True in its prompt is no token"),
        ({"prompt": [1], "answer": []}, "line 2 has an empty answer"),
        ({**ROW, "steps": 0}, "line 2: steps must be"),
        ({**ROW, "steps": "2"}, "line 2: steps must be a whole number"),
        ({**ROW, "corrupt_answer": "1"}, "line 2 has a corrupt_answer, but no 'corrupt'"),
        ({**ROW, "split": 1}, "line 2: split is a text, not 1"),
        ({**ROW, "cluster": [1]}, r"line 2: cluster is a text, not \[1\]"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        examples(lines(tmp_path / "bad.jsonl", ROW, row))


def test_what_is_no_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lines(tmp_path / "blank.jsonl", "", " ")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name, said in (
        ("none.jsonl", "there is no file"), ("none.parquet", "there is no file"), ("blank.jsonl", "has no examples"),
        ("latin.jsonl", "is not UTF-8: byte 12"), ("empty", "is a folder, but no dataset on disk"),
        ("broken.parquet", "cannot read .*broken.parquet"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=said):
            examples(tmp_path / name)
    with pytest.raises(InputError, match="'train' is 'rows'"):
        examples({"train": "rows"})  # type: ignore[dict-item]


# ---- holding out -----------------------------------------------------------------------------------------------------


def apart(made: Split, key: str) -> bool:
    """Whether no value of a key is both learned from and held out."""
    return not {each.value(key) for each in made.train} & {each.value(key) for each in (*made.held_out, *made.watched)}


@pytest.mark.parametrize("seed", range(5))
def test_no_cluster_is_on_both_sides_whichever_way(seed: int) -> None:
    def cluster(at: int) -> str:
        return f"{seed} {at % 17}"

    found = examples(rows(80, cluster=cluster, page=lambda at: at % 5))
    made = split(found, share=0.3)
    assert apart(made, "cluster")
    assert made.how == "30% by the hash of 'cluster'"
    assert len(made.train) + len(made.held_out) == 80
    assert all((hashed(each.cluster) < 0.3) == (each in set(made.held_out)) for each in found)
    for field in ("page", "prompt"):  # of these, whole clusters are on both sides, or the split is one of clusters
        with pytest.raises(InputError, match=r"cluster .* would be both learned from and held out: example"):
            split(found, by=field, share=0.5)
    side = examples({**each.to_dict(), "split": "test" if (each.cluster or "").endswith("3") else "train"}
                    for each in found)  # fmt: skip
    assert apart(split(side), "cluster")
    leaking = [*(each.to_dict() for each in side), {**ROW, "split": "test", "cluster": cluster(0)}]
    with pytest.raises(InputError, match="would be both"):
        split(examples(leaking))


def test_a_split_does_not_depend_on_the_order_and_holds_for_examples_added_later() -> None:
    few, many = examples(rows(60)), examples(rows(90)[::-1])
    out, more = ({each.prompt for each in split(each).held_out} for each in (few, many))
    assert out == {prompt for prompt in more if int(str(prompt)[1:]) < 60}
    assert 0 < len(out) < 30


def test_an_example_without_a_cluster_is_held_out_by_its_prompt() -> None:
    found = examples([*rows(40, cluster=lambda at: at % 20), *({**ROW, "prompt": f"alone {at}"} for at in range(40))])
    made = split(found)
    assert apart(made, "prompt")
    assert not {each.cluster for each in made.train if each.cluster} & {each.cluster for each in made.held_out}
    assert made.how == "20% by the hash of 'cluster', else 'prompt'"
    for each in found:
        assert (hashed(each.cluster or each.prompt) < 0.2) == (each in set(made.held_out))
    with pytest.raises(InputError, match="has no 'cluster', by whose hash"):
        split(found, by="cluster")


def test_white_space_around_a_prompt_makes_no_other_question() -> None:
    found = examples([{**ROW, "prompt": f"{at}{space}"} for at in range(60) for space in ("", " ", "\n")])
    made = split(found)
    sides = [{str(each.prompt).strip() for each in part} for part in (made.train, made.held_out)]
    assert not sides[0] & sides[1]
    assert len(made.held_out) == 3 * len(sides[1])
    with pytest.raises(InputError, match="would be both learned from and held out"):
        split(examples([{**ROW, "split": "train"}, {**ROW, "prompt": f"{ROW['prompt']} ", "split": "test"}]))


def test_a_field_says_what_is_watched_and_what_is_held_out() -> None:
    words = ["train", "validation", "Test"]
    made = split(examples(rows(9, part=lambda at: words[at % 3])), field="part")
    assert [len(each) for each in (made.train, made.watched, made.held_out)] == [3, 3, 3]
    assert made.how == "by the field 'part'"
    two = split(examples(rows(4, split=lambda at: ["fit", "dev"][at % 2])))
    assert two.watched == two.held_out
    with pytest.raises(InputError, match=r"example 1 has 'part' 'tran'; it says .* \(nearest: train\)"):
        split(examples(rows(2, part=lambda _: "tran")), field="part")


def test_examples_are_held_out_by_another_file_and_prompts_are_compared() -> None:
    found, other = examples(rows(3)), examples([ROW], "others")
    assert split(found, other).how == "all of others"
    with pytest.raises(InputError, match="prompt 'q1' would be both"):
        split(found, examples(rows(2)[1:]))
    with pytest.raises(InputError, match="in one way"):
        split(found, other, field="split")
    with pytest.raises(InputError, match="all texts or all tokens"):
        split(found, examples([{"prompt": [1], "answer": 2}]))


@pytest.mark.parametrize(
    ("given", "how", "said"),
    [
        (rows(3, split=lambda _: "train"), {}, "no examples are left held out of 3"),
        (rows(3, split=lambda _: "test"), {}, "no examples are left to learn from of 3"),
        (rows(4, cluster=lambda _: "one"), {}, "no examples are left"),
        (rows(4), {"by": "page"}, "example 1 has no 'page', by whose hash"),
        (rows(4), {"share": 0.0}, "above 0 and below 1"),
        (rows(4), {"share": float("nan")}, "above 0 and below 1"),
        (
            rows(3, split=lambda at: ("train", "test")[at % 2]),
            {"share": 0.3},
            "a share is held out by a hash, and here",
        ),
    ],
)
def test_nothing_left_on_a_side_is_refused(given: list[dict[str, Any]], how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        split(examples(given), **how)


@pytest.mark.parametrize("name", list(TASKS))
def test_the_papers_tasks_are_examples_too(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "drawn.jsonl"
    asked = ("lm", "examples", name, "--count", "30", "--deepest", "3", "--out")
    assert loopscope(capsys, *asked, str(out))[0] == 0
    made, task = split(examples(out)), TASKS[name]()
    assert len(made.train) == 30
    assert made.train.steps == made.held_out.steps == [1, 2, 3]
    assert made.train.digest == split(drawn(task, 30, 3)).train.digest
    assert all(task.right(str(each.answer), str(each.answer)) for each in made.train)
    assert loopscope(capsys, *asked, str(out))[0] == 2  # it is there
    with pytest.raises(InputError, match="number of steps"):
        drawn(task, 3, 0)


def test_examples_print_in_a_line() -> None:
    assert repr(examples(rows(3, cluster=lambda at: at % 2))) == "Examples('examples', 3 examples, 2 clusters)"
    assert isinstance(Examples("x", (Example("a", "b"),))[0], Example)
