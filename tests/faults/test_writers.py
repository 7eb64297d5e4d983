"""What is written beside the trainers' runs, killed or on a full disk at each file operation: scores, the
judge's journal, decoded pictures, exported files, added classes, records. Called again, the commands end
where a call that was left alone ends."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from injection import contents
from trainers import SECONDS, outcome, paint, train_lm

import classifier.cli
import lm.cli
import lm.judge.command
from classifier import export
from classifier.trained import open_trained
from scripts.common.records import Record
from sqrtvocab.errors import exit_code
from sqrtvocab.training import load_checkpoint

GRADES = '{"grammar": 7, "creativity": 6, "consistency": 8, "plot": 5, "age": 6}'


both = pytest.mark.parametrize("how", ["kill", "full"])


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "inside"
    folder.mkdir()
    return folder


@pytest.mark.slow
@both
def test_scores(how, trainer, disturb, forked, inside, tally, tmp_path) -> None:
    assert forked(trainer.main, trainer.argv(inside / "r"), tmp_path, {}).wait(SECONDS).code == 0
    program = trainer.program.replace("train", "eval")
    argv = [inside / "r", "--device", "cpu", *(["--workers", 0] if program == "eval_classifier" else [])]

    def scores() -> Any:
        return {name: data for name, data in contents(inside / "r").items() if name.startswith("eval")}

    tally(f"{program} disturbed ({how})", disturb(how, program, trainer.score, argv, inside, scores))


@pytest.mark.slow
@both
def test_the_journal_of_the_judge(
    how, small_models, text, disturb, forked, inside, tally, monkeypatch, tmp_path
) -> None:
    class Server:
        def ask(self, messages: Any, **options: Any) -> str:
            return GRADES if len(messages) > 1 else "A fine story."

    monkeypatch.setattr(lm.judge.command, "server_from_environment", lambda *arguments: Server())
    trainer = train_lm(text, tmp_path / "cache")
    assert forked(trainer.main, trainer.argv(inside / "r", 1), tmp_path, {}).wait(SECONDS).code == 0
    (tmp_path / "openings.txt").write_text("Once\nOne day\n")
    argv = [inside / "r", "--prompts", tmp_path / "openings.txt", "--completions", 1, "--concurrency", 1]
    argv += ["--max-tokens", 3, "--device", "cpu"]

    def graded() -> list[bytes]:
        return [(inside / "r" / f"judge.{kind}").read_bytes() for kind in ("jsonl", "json")]

    tries = disturb(how, "judge_lm", lm.cli.judge_main, argv, inside, graded)
    tally(f"judge_lm disturbed ({how})", tries)


on_pictures = pytest.mark.parametrize("trainer", ["pictures"], indirect=True)


@pytest.mark.slow
@both
@on_pictures
def test_a_run_on_pictures_and_their_cache(how, trainer, disturb, inside, tally) -> None:
    """From the first picture to be decoded to the last checkpoint."""
    run = inside / "r"
    argv = [*trainer.argv(run), "--cache", inside / "cache"]

    def result() -> Any:
        cached = contents(inside / "cache")
        return outcome(run), {name: cached[name] for name in cached if not name.endswith(".lock")}

    tries = disturb(how, trainer.program, trainer.main, argv, inside, result)
    tally(f"train_classifier on pictures, disturbed ({how})", tries)


@pytest.mark.slow
@both
@on_pictures
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_exported_files(how, form, trainer, disturb, forked, apart, inside, tally, tmp_path) -> None:
    """Traced once: it is the writing that is disturbed."""
    run = tmp_path / "r"
    assert forked(trainer.main, trainer.argv(run), tmp_path, {}).wait(SECONDS).code == 0
    argv = [run, "--format", form, "--out", inside / f"model{'.onnx' if form == 'onnx' else '.pt2'}"]

    def work() -> None:
        trained = open_trained(run)
        program = export._traced(export.Deployed(trained.model.eval(), trained.image_size, 2), trained)
        export._traced = lambda *arguments: program
        if form == "onnx":
            names = {"input_names": [export.INPUT], "output_names": list(export.OUTPUTS)}
            model = torch.onnx.export(program, dynamo=True, verbose=False, **names)
            torch.onnx.export = lambda *arguments, **options: model
        print(disturb(how, "export_classifier", classifier.cli.export_main, argv, inside))

    tally(f"export_classifier disturbed ({how}), {form}", int(apart(work).split()[-1]))


@pytest.mark.slow
@both
@on_pictures
def test_added_classes(how, trainer, disturb, forked, inside, tally, tmp_path) -> None:
    run = tmp_path / "r"
    flags = ["--head", "prototype", "--backbone", "swift", "--no-prior", "--augment", "none"]
    argv = [*trainer.argv(run), *flags, "--image-size", 16]
    trained = forked(trainer.main, argv, tmp_path, {}).wait(SECONDS)
    assert trained.code == 0, trained.err
    new = paint(tmp_path / "new", ("cat",), 2)
    argv = [run, new, "--workers", 0, "--device", "cpu", "--out", inside / "more"]

    def add() -> int:
        """Whole, it is not written again."""
        return 0 if (inside / "more").exists() else classifier.cli.add_main()

    def result() -> Any:
        checkpoint = load_checkpoint(inside / "more", "best")
        return checkpoint.state, contents(inside / "more").keys()

    tally(f"add_classes disturbed ({how})", disturb(how, "add_classes", add, argv, inside, result))


@both
def test_the_record_of_a_script(how, disturb, inside, tally) -> None:
    """A measurement is in it or is made again; those before it stay."""
    record = Record(inside / "record.csv", ("name",))

    def measure() -> int:
        def keep() -> None:
            for name in ("one", "two"):
                if (name,) not in record.known():
                    record.keep({"name": name, "seconds": "1.5"})

        return exit_code("script", keep)

    tally(f"records of scripts disturbed ({how})", disturb(how, "script", measure, [], inside))


# What is written otherwise than by `sqrtvocab.atomic`, and why it may be.
BARE = {
    "classifier/export.py": "a draft, renamed",
    "classifier/images/cache.py": "pixels, which are not there before their checksums are",
    "lm/text/corpus.py": "tokens, the same",
    "scripts/bench_start.py": "scratch",
    "scripts/characters/writing.py": "a draft, renamed",
    "scripts/demo_characters.py": "what the demo itself reads next, written anew each time",
    "scripts/figure_characters.py": "the same",
    "shapesgen/shards.py": "drafts, renamed",
    "sqrtvocab/appended.py": "lines, each with a checksum",
    "sqrtvocab/atomic.py": "",
    "sqrtvocab/training/logbook.py": "damaged lines set aside, before they are taken out",
}


def test_results_are_written_whole() -> None:
    """A file that somebody may read is there in one piece or not at all."""
    root = Path(__file__).parents[2]
    found = {
        path.relative_to(root).as_posix()
        for package in ("sqrtvocab", "shapesgen", "classifier", "lm", "scripts")
        for path in (root / package).rglob("*.py")
        if any(writes_bare(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }
    assert found == set(BARE)


def writes_bare(node: ast.AST) -> bool:
    """Whether this is `path.write_text(...)`, `path.open("w")` or the like."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in ("write_text", "write_bytes"):
        return isinstance(node.func, ast.Attribute)
    words = [word.value for word in node.args if isinstance(word, ast.Constant)]
    return name == "open" and any(
        isinstance(word, str) and set(word) <= set("rwxabt+") and set(word) & set("wxa+") for word in words
    )
