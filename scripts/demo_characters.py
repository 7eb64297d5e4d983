"""Real classes in five minutes: the 2,350 common Hangul syllables, read in typefaces never seen.

    python scripts/demo_characters.py                 # writes runs/characters; fonts as Debian has them

Draws the syllables in the fonts of the machine, trains on most families, scores the others, then lets
`predict_classifier` read some of their pictures, and a screenshot, and draws a sheet of what it read.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.characters.repertoire import HANGUL
from scripts.common.command import read_flags, run_script
from sqrtvocab.errors import RunError
from sqrtvocab.flags import Flags, at_least

_COMMANDS = {
    "train_classifier": "classifier.cli:train_main",
    "eval_classifier": "classifier.cli:eval_main",
    "predict_classifier": "classifier.cli:predict_main",
}
SIZE = 48  # pixels
_TRAINING = (
    f"--grey --image-size {SIZE} --backbone swift --head prototype --images-of-a-class 2 --refresh-images 16 "
    "--grouping index --augment letters --batch-size 128 --accumulate 1 --epochs 1000 --lr 0.003 "
    "--schedule cosine --warmup-steps 20 --eval-images 2000"
)
_COLUMNS, _SHOWN = 12, 72  # pictures
_RIGHT, _WRONG = (60, 140, 60), (190, 40, 40)


@dataclass(frozen=True)
class DemoFlags(Flags):
    """Read characters in typefaces never seen."""

    out: Path = Path("runs/characters")
    """Folder for the pictures, the run and the sheet."""
    steps: int = 3000
    """Steps of training."""
    fonts: tuple[Path, ...] = ()
    """Folders with fonts, or font files; by default where fontconfig looks."""

    def problems(self) -> list[str]:
        return super().problems() + at_least(self, 10, "steps")


def common_syllables() -> str:
    """The 2,350 of the Korean standard KS X 1001: two bytes in this code, the others eight."""
    return "".join(chr(code) for code in HANGUL if len(chr(code).encode("euc_kr")) == 2)


def run(command: str, *arguments: object, read: bool = False) -> str:
    """Run a command of this project and show it; what it printed, if that is to be read."""
    words = [str(argument) for argument in arguments]
    print("\n$", command, *words, flush=True)
    if command in _COMMANDS:
        module, function = _COMMANDS[command].split(":")
        start = ["-c", f"import sys; from {module} import {function}; sys.exit({function}())"]
    else:
        start = ["-m", f"scripts.{command}"]
    output = subprocess.PIPE if read else None
    ended = subprocess.run([sys.executable, *start, *words], check=False, stdout=output, text=True)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return ended.stdout or ""


def main(config: DemoFlags) -> None:
    """Draw, train, score, read."""
    out, data, trained = config.out, config.out / "set", config.out / "run"
    out.mkdir(parents=True, exist_ok=True)
    (out / "syllables.txt").write_text(common_syllables(), "utf-8")
    fonts = ["--fonts", *config.fonts] if config.fonts else []
    run("render_characters", "--script", out / "syllables.txt", "--out", data, "--size", SIZE, *fonts)
    length = ["--max-steps", config.steps, "--eval-every", config.steps // 4]
    length += ["--mine-at", *(config.steps * tenth // 10 for tenth in range(1, 10))]
    run("train_classifier", "--data", data, *_TRAINING.split(), *length, "--out", trained, "--resume", "auto")
    run("eval_classifier", trained, "--split", "test")

    truth, drawn = save_pictures(data, out / "pictures")
    lines = run(
        "predict_classifier", trained, out / "pictures", "--json", "--top-k", 1, read=True
    ).splitlines()
    read = {
        Path(line["file"]).name: line["classes"][0]["name"]
        for line in map(json.loads, lines)
        if "classes" in line
    }
    if set(read) != set(truth):
        raise RunError(f"predict_classifier read {len(read)} of {len(truth)} pictures")
    from sqrtvocab.atomic import write_bytes

    write_bytes(out / "sheet.png", sheet(out / "pictures", truth, read, drawn))
    right = sum(read[name] == character for name, character in truth.items())
    screenshot = out / "screenshot.png"
    character = save_screenshot(out / "pictures", truth, screenshot)
    run("predict_classifier", trained, screenshot)
    print(
        f"\nThe screenshot shows {character}. {right} of the {len(truth)} on {out / 'sheet.png'} are right."
    )


def save_pictures(data: Path, folder: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Some pictures of the test families as files -> what each shows; and a picture of every character."""
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    tables = [
        pq.read_table(file, columns=["image", "character"])
        for file in sorted((data / "data").glob("test-*.parquet"))
    ]
    truth: dict[str, str] = {}
    drawn: dict[str, bytes] = {}
    for table in tables:
        for image, character in zip(table["image"].to_pylist(), table["character"].to_pylist(), strict=True):
            drawn.setdefault(character, image["bytes"])
    for number in range(_SHOWN):
        table = tables[number % len(tables)]
        row = (997 * number) % table.num_rows  # here and there in the alphabet
        name = f"{number:02d}.png"
        (folder / name).write_bytes(table["image"][row].as_py()["bytes"])
        truth[name] = table["character"][row].as_py()
    return truth, drawn


def save_screenshot(pictures: Path, truth: Mapping[str, str], path: Path) -> str:
    """A picture of another size and shape, as one cuts it out of a page -> the character that it shows."""
    from PIL import Image

    name, character = next(iter(truth.items()))
    with Image.open(pictures / name) as picture:
        large = picture.resize((170, 170), Image.Resampling.BICUBIC)
    canvas = Image.new("RGB", (240, 180), (250, 250, 247))
    canvas.paste(Image.merge("RGB", [large] * 3), (35, 5))
    canvas.save(path)
    return character


def sheet(
    pictures: Path, truth: Mapping[str, str], read: Mapping[str, str], drawn: Mapping[str, bytes]
) -> bytes:
    """All pictures, those read wrongly in red, with a small picture of what was read.

    Args:
        truth, read: file name -> character.
        drawn: character -> a picture of it.
    """
    from PIL import Image, ImageDraw

    side, half, gap = 64, 32, 10
    step = (side + gap, side + half + gap)
    rows = -(-len(truth) // _COLUMNS)
    canvas = Image.new("RGB", (_COLUMNS * step[0] + gap, rows * step[1] + gap), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (name, character) in enumerate(truth.items()):
        left, top = gap + number % _COLUMNS * step[0], gap + number // _COLUMNS * step[1]
        is_right = read[name] == character
        draw.rectangle((left - 1, top - 1, left + side, top + side), outline=_RIGHT if is_right else _WRONG)
        files = [(pictures / name).read_bytes()]
        if not is_right and read[name] in drawn:
            files.append(drawn[read[name]])
        for file, size, y in zip(files, (side, half), (top, top + side + 2), strict=False):
            with Image.open(io.BytesIO(file)) as picture:
                canvas.paste(picture.convert("RGB").resize((size, size)), (left, y))
    data = io.BytesIO()
    canvas.save(data, "PNG")
    return data.getvalue()


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(DemoFlags, __doc__)))
