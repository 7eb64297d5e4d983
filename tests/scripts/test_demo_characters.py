"""The example of `make characters`: its pictures and its sheet."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from scripts.characters.drawing import Encoder
from scripts.characters.sheet import hardest
from scripts.demo_characters import common_syllables, save_pictures, save_screenshot, sheet


def test_the_common_syllables_are_those_of_the_standard():
    syllables = common_syllables()
    assert len(syllables) == len(set(syllables)) == 2350
    assert syllables[0] == "가"
    assert syllables[-1] == "힝"
    assert "갂" not in syllables


def test_what_is_wrong_is_red(tmp_path):
    encode = Encoder(64)
    files = [encode(np.full((64, 64), grey, np.uint8).tobytes()) for grey in (0, 100, 200)]
    images = [{"bytes": file, "path": ""} for file in files]
    (tmp_path / "data").mkdir()
    pq.write_table(
        pa.table({"image": images, "character": ["가", "나", "다"]}), tmp_path / "data/test-0.parquet"
    )
    truth, drawn = save_pictures(tmp_path, tmp_path / "pictures")
    assert drawn == dict(zip("가나다", files, strict=True))
    assert [truth[f"{n:02d}.png"] for n in range(3)] == ["가", "나", "다"]
    read = dict(truth) | {"01.png": "다", "02.png": "쀍"}  # which no test family draws
    with Image.open(io.BytesIO(sheet(tmp_path / "pictures", truth, read, drawn))) as picture:
        colours = [picture.getpixel((9 + 74 * n, 20)) for n in range(4)]
        below = [picture.getpixel((20 + 74 * n, 90)) for n in range(3)]
    assert colours == [(60, 140, 60), (190, 40, 40), (190, 40, 40), (60, 140, 60)]
    assert below == [(255, 255, 255), (200, 200, 200), (255, 255, 255)]
    table = pq.read_table(tmp_path / "data/test-0.parquet").append_column("family", [["A"] * 3])
    pq.write_table(table, tmp_path / "data/test-0.parquet")
    with Image.open(io.BytesIO(hardest([("나", "다"), ("가", "나")], tmp_path))) as picture:
        line = [picture.getpixel((14 + 230 + 68 * n + 5, 60)) for n in range(4)]
    assert line == [100, 200, 0, 100]
    assert save_screenshot(tmp_path / "pictures", truth, tmp_path / "shot.png") == "가"
    with Image.open(tmp_path / "shot.png") as shot:
        assert shot.size == (240, 180)
