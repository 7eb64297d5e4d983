"""`judge_lm`: the stories of a trained run, graded by a judge, in a table, a file and TensorBoard."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from torch.utils.tensorboard.summary import scalar
from tqdm import tqdm

from lm.config import JudgeConfig
from lm.generate import continue_stories
from lm.judge.chat import server_from_environment
from lm.judge.grade import Journal, Judge, Summary, judge_all, summarise
from lm.report import BOARD
from lm.runs import load_run
from lm.stories.openings import OPENINGS
from sqrtvocab.atomic import read_json
from sqrtvocab.training import RunError, UserError, choose_device, open_runtime, write_json
from sqrtvocab.training.event_file import EventFile


def judge_run(config: JudgeConfig) -> None:
    """Run `judge_lm`.

    Raises:
        UserError: for input that cannot be used, before any story is written.
        RunError: the judge left stories without an answer; calling again asks about those only.
    """
    judge = _open_judge(config)
    openings = [text for text in _openings(config.prompts) for _ in range(config.completions)]
    path = config.out or config.run / "judge.jsonl"
    scores = _scores_beside(path)
    with open_runtime(config.device, "fp32", config.seed) as runtime:
        run = load_run(config.run, config.checkpoint, runtime)
        settings = {
            "step": run.state["step"],
            "checkpoint": config.checkpoint,
            "model": config.judge_name,
            "openings": openings,
            "max_tokens": config.max_tokens,
            "temperature": config.temperature,
            "seed": config.seed,
        }
        journal = Journal(path, settings)
        if len(journal.items) < len(openings):
            try:
                texts = continue_stories(
                    run.model,
                    run.tokenizer,
                    openings,
                    max_tokens=config.max_tokens,
                    temperature=config.temperature,
                    seed=config.seed,
                )
            except UserError as error:
                raise UserError(f"--prompts {config.prompts or '(built in)'}: {error}") from error
            for number, (opening, text) in enumerate(zip(openings, texts, strict=True)):
                if number not in journal.items:
                    journal.add({"number": number, "opening": opening, "continuation": text})
    with tqdm(total=len(openings), desc=f"judged by {config.judge_name}", unit="story", leave=False) as bar:
        bar.update(sum(item.done for item in journal.items.values()))
        problems = judge_all(judge, journal, config.concurrency, bar.update)
    journal.close()

    summary = summarise(list(journal.items.values()), config.seed)
    document = {"judge": config.judge_name, **settings, **asdict(summary), "valid_rate": summary.valid_rate}
    write_json(scores, document)
    events = EventFile(config.run)
    means = {name: score.mean for name, score in summary.scores.items()}
    for name, mean in {**means, "valid_rate": summary.valid_rate}.items():
        tag = f"judge/{name}"
        events.add(BOARD.described(scalar(BOARD.tag(tag), mean), tag), run.state["step"])
    events.close()
    _show(summary, config)
    print(f"\nraw answers in {path}, scores in {scores}")
    if problems:
        raise RunError(
            f"{len(problems)} stories have no grade yet: {problems[0]}; call again to ask about them"
        )


def _open_judge(config: JudgeConfig) -> Judge:
    if config.judge is None:
        return server_from_environment(config.model, config.timeout)
    from lm.judge.local import LocalJudge

    return LocalJudge(config.judge, choose_device(config.device), config.seed)


def _show(summary: Summary, config: JudgeConfig) -> None:
    print(
        f"{config.run}, judged by {config.judge_name}: {summary.valid} of {summary.stories} grades readable\n"
    )
    print(f"{'':<13}{'mean':>7}{'95 % interval':>18}")
    for name, score in summary.scores.items():
        print(f"{name:<13}{score.mean:>7.2f}{f'{score.low:.2f} to {score.high:.2f}':>18}")


def _scores_beside(path: Path) -> Path:
    """Where the scores go: the name of the raw answers, with `.json`. Another's file of that name, such as
    the run's `config.json`, is not overwritten."""
    if not path.name:
        raise UserError(f"--out {path}: a folder; name a file")
    scores = path.with_suffix(".json")
    try:
        is_ours = not scores.exists() or "judge" in dict(read_json(scores))
    except (UserError, TypeError, ValueError):
        is_ours = False
    except OSError as error:
        raise UserError(f"--out {path}: cannot be written ({error.strerror or error})") from error
    if not is_ours:
        raise UserError(
            f"--out {path}: the scores would go to {scores}, which is not judge_lm's; name another file"
        )
    return scores


def _openings(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return OPENINGS
    try:
        lines = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except UnicodeDecodeError as error:
        raise UserError(f"--prompts {path}: not UTF-8 at byte {error.start:,}") from error
    if not lines:
        raise UserError(f"--prompts {path}: no opening in it; expected one on each line")
    return lines
