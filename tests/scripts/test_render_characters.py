"""Characters as a picture set, with the fonts that come with matplotlib and small ones made here."""

import bz2
import json
import shutil
import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont

from classifier.images.pictures import open_pictures
from scripts.characters.drawing import Encoder, draw_face
from scripts.characters.families import choose_splits, merge_kin, outline
from scripts.characters.fonts import Face, family_of, survey
from scripts.characters.repertoire import known_of, radicals_of, repertoire
from scripts.render_characters import RenderFlags, main, thinned
from sqrtvocab.errors import UserError

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
LETTERS = "".join(map(chr, [*range(0x41, 0x5B), *range(0x61, 0x7B), *range(0x3B1, 0x3CA)]))


def faces_of(path: Path, text: str = LETTERS) -> list[Face]:
    faces, problem = survey(path, lambda *_: None, [ord(letter) for letter in text])
    assert not problem
    return faces


@pytest.fixture
def fonts(tmp_path: Path) -> Path:
    """Three families, one of them with two faces."""
    folder = tmp_path / "fonts"
    folder.mkdir()
    for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "STIXGeneral"):
        shutil.copy(FONTS / f"{name}.ttf", folder)
    (folder / "broken.ttf").write_bytes(b"\0\1\0\0 no font")
    return folder


@pytest.fixture
def flags(fonts: Path, tmp_path: Path) -> dict:
    letters = tmp_path / "letters.txt"
    letters.write_text(f"{LETTERS}\n한", "utf-8")
    out = tmp_path / "out"
    return {
        "out": out,
        "script": str(letters),
        "fonts": (fonts,),
        "size": 24,
        "min_families": 3,
        "workers": 1,
    }


def test_the_classifier_reads_the_set(flags, tmp_path, capfd):
    main(RenderFlags(**flags))
    said = capfd.readouterr()
    assert "broken.ttf, which cannot be read" in said.err
    opened = open_pictures(flags["out"], size=24, grey=True, cache=tmp_path / "cache", cache_limit=1)
    sets = {split: opened[split] for split in ("train", "validation", "test")}
    assert list(sets["train"].classes) == sorted(LETTERS)
    assert min(map(len, sets.values())) == len(LETTERS)
    assert sum(map(len, sets.values())) == 4 * len(LETTERS)  # DejaVu Sans has two faces
    for images in sets.values():
        pixels, _ = images.batch(np.arange(len(images)))
        ink = pixels[..., 0] < 255  # [N, 24, 24]
        for axis in (1, 2):
            there = ink.any(axis)  # [N, 24]
            first, last = there.argmax(1), 23 - there[:, ::-1].argmax(1)
            assert (abs(first + last - 23) <= 1).all()  # centred, but for half a pixel
            assert (last - first >= 1).all()
    manifest = json.loads((flags["out"] / "manifest.json").read_text())
    split_of = {}
    for file in manifest["files"]:
        assert split_of.setdefault(file["family"], file["split"]) == file["split"]
        assert file["version"]
        assert file["licence"]
    assert sorted(split_of) == ["DejaVu Sans", "DejaVu Serif", "STIXGeneral"]
    assert sorted(split_of.values()) == ["test", "train", "validation"]


def test_a_stopped_run_goes_on_and_a_finished_one_is_left_alone(flags, capsys, monkeypatch):
    main(RenderFlags(**flags))
    out = flags["out"]
    names = sorted(path.relative_to(out) for path in out.rglob("*.*"))
    before = {name: (out / name).read_bytes() for name in names}
    main(RenderFlags(**flags))
    assert "all there already" in capsys.readouterr().out
    with pytest.raises(UserError, match="other settings"):
        main(RenderFlags(**flags | {"size": 32}))

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # stopped when all is drawn and nothing is written
        patch.setattr("scripts.characters.writing.write_part", full_disk)
        with pytest.raises(OSError, match="No space"):
            main(RenderFlags(**flags | {"overwrite": True}))
    assert not (out / "manifest.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr("scripts.characters.writing.draw_face", full_disk)  # must not be asked again
        main(RenderFlags(**flags))
    assert {name: (out / name).read_bytes() for name in names} == before


def test_families_may_be_named(flags):
    main(RenderFlags(**flags, test_families=("dejavu sans",), valid_families=("STIXGeneral",)))
    files = json.loads((flags["out"] / "manifest.json").read_text())["files"]
    assert {file["family"]: file["split"] for file in files} == {
        "DejaVu Sans": "test", "DejaVu Serif": "train", "STIXGeneral": "validation",
    }  # fmt: skip


def test_too_few_fonts_are_one_line_that_says_where_to_get_them(flags, fonts, tmp_path):
    for name in ("STIXGeneral.ttf", "DejaVuSerif.ttf"):
        (fonts / name).unlink()
    with pytest.raises(UserError, match=r"only 1 font families \(DejaVu Sans\).*apt install fonts-noto-cjk "):
        main(RenderFlags(**flags))
    with pytest.raises(UserError, match=r"no font family.*apt install fonts-noto-cjk "):
        main(RenderFlags(**flags | {"script": "hangul", "out": tmp_path / "hangul"}))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"script": "klingon"}, "expected hangul, han, han-all or a text file"),
        ({"size": 0}, "--size must be 8 to 512"),
        ({"fonts": (Path("nowhere"),)}, "--fonts nowhere: no such"),
        ({"workers": 0}, "--workers must be at least 1"),
        ({"min_families": 5}, "--min-families 5 needs as many"),
    ],
)
def test_bad_input_names_the_flag(flags, change, expected):
    with pytest.raises(UserError, match=expected):
        main(RenderFlags(**flags | change))


def test_the_command_ends_with_2(call, tmp_path):
    result = call("render_characters", "--script", "klingon", "--out", tmp_path / "new")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


def test_only_an_empty_folder_is_written_to(flags):
    flags["out"].mkdir()
    (flags["out"] / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        main(RenderFlags(**flags | {"overwrite": True}))
    assert (flags["out"] / "thesis.txt").read_text() == "mine"


# ---- fonts that claim to have what they do not draw


def build_font(path: Path, family: str, characters: str, box: str = "", blank: str = "") -> Path:
    """Each of `characters` is a bar of its own height; those in `box` are the missing glyph drawn again."""

    def bar(left: int, bottom: int, right: int, top: int):
        pen = TTGlyphPen(None)
        pen.moveTo((left, bottom))
        for point in ((left, top), (right, top), (right, bottom)):
            pen.lineTo(point)
        pen.closePath()
        return pen.glyph()

    glyphs = {".notdef": bar(100, 0, 500, 700), "empty": TTGlyphPen(None).glyph()}
    cmap = {ord(letter): "empty" for letter in blank}
    for number, letter in enumerate(characters):
        glyphs[f"bar{number}"] = bar(100, 0, 900, 100 + 80 * number)
        cmap[ord(letter)] = f"bar{number}"
    for number, letter in enumerate(box):  # under a name of its own, as fonts do
        glyphs[f"box{number}"] = bar(100, 0, 500, 700)
        cmap[ord(letter)] = f"box{number}"
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap(cmap)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def test_blank_and_missing_characters_are_left_out(tmp_path):
    # Syllables: FreeType aligns Latin letters with each other, so their box is not quite the missing glyph.
    path = build_font(tmp_path / "a.ttf", "Bars", "가각간갇갈감", box="나낙난", blank="다닥")
    (face,) = faces_of(path, "가각간갇갈감나낙난다닥")
    assert len(face.codes) == 11
    drawn = draw_face(face, 32, lambda *_: None)
    assert "".join(map(chr, drawn.codes)) == "가각간갇갈감"
    assert (drawn.blank, drawn.boxes) == (2, 3)
    assert len(set(drawn.files)) == 6


def test_one_picture_for_many_characters_is_none():
    (face,) = faces_of(FONTS / "LastResortHE-Regular.ttf")  # a picture for each block of Unicode
    drawn = draw_face(face, 32, lambda *_: None)
    assert not drawn.codes
    assert drawn.boxes == len(LETTERS)


def test_the_faces_of_a_collection_draw_an_outline_once(tmp_path):
    one = TTFont(build_font(tmp_path / "a.ttf", "Bars JP", "abc"))
    other = TTFont(build_font(tmp_path / "b.ttf", "Bars KR", "abc"))
    for table in other["cmap"].tables:  # the same outlines; another one for c
        table.cmap[ord("c")] = ".notdef"
        table.cmap[ord("d")] = "bar2"
    collection = TTCollection()
    collection.fonts = [one, other]
    collection.save(tmp_path / "both.ttc", shareTables=True)
    faces = faces_of(tmp_path / "both.ttc", "abcd")
    assert [("".join(map(chr, face.codes)), face.family) for face in faces] == [("abc", "Bars")]


def test_of_a_family_in_many_files_some_are_taken_whole():
    def face(family, path, number=0):
        return Face(Path(path), number, family, family, "", "", "", (1,))

    weights = [face("A", f"{weight}.ttc", number) for weight in range(7) for number in (0, 1)]
    faces = [*weights, face("B", "b.ttf")]
    kept = [(each.path.stem, each.number) for each in thinned(faces, 3)]
    assert kept == [("0", 0), ("0", 1), ("2", 0), ("2", 1), ("4", 0), ("4", 1), ("b", 0)]
    assert thinned(faces, 7) == faces


def test_png_files_hold_the_pixels():
    import io

    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (20, 20), np.uint8)
    with Image.open(io.BytesIO(Encoder(20)(pixels.tobytes()))) as picture:
        assert picture.mode == "L"
        assert np.array_equal(np.asarray(picture), pixels)


# ---- families


def test_a_font_under_another_name_is_kin():
    def sample(name: str, size: int):
        (face,) = faces_of(FONTS / name)
        drawn = draw_face(face, size, lambda *_: None)
        import io

        from PIL import Image

        pictures = (np.asarray(Image.open(io.BytesIO(file))) for file in drawn.files)
        return dict(zip(drawn.codes, map(outline, pictures), strict=True))

    samples = [sample("DejaVuSans.ttf", 64), sample("DejaVuSans.ttf", 72), sample("STIXGeneral.ttf", 64)]
    kin = merge_kin(["Sans", "Copy", "STIX"], samples)
    assert kin == {"Sans": "Copy + Sans", "Copy": "Copy + Sans", "STIX": "STIX"}


def test_the_choice_of_families_follows_from_their_names():
    sizes = {f"family {n}": 100 for n in range(20)} | {"small": 10}
    splits = choose_splits(sizes, 50, (), ())
    assert splits == choose_splits(dict(reversed(sizes.items())), 50, (), ())
    counts = {split: list(splits.values()).count(split) for split in ("train", "validation", "test")}
    assert counts == {"train": 15, "validation": 2, "test": 4}
    assert splits["small"] == "train"
    named = choose_splits({"A + B": 5, "C": 5, "D": 5}, 2, ("b",), ("c",))
    assert named == {"A + B": "test", "C": "validation", "D": "train"}
    with pytest.raises(UserError, match="no such family"):
        choose_splits(sizes, 50, ("family 99",), ())
    with pytest.raises(UserError, match="too"):
        choose_splits(sizes, 50, ("family 1",), ("family 1",))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Noto Sans CJK KR", "Noto Sans CJK"),
        ("Noto Serif CJK JP ExtraLight", "Noto Serif CJK"),
        ("AR PL UKai TW MBE", "AR PL UKai"),
        ("NanumSquare_ac Bold", "NanumSquare"),
        ("TW-Kai-Ext-B", "TW-Kai"),
        ("HanaMinB", "HanaMin"),
        ("Bold", "Bold"),
    ],
)
def test_a_family_is_its_name_without_weight_and_country(name, family):
    assert family_of(name) == family


# ---- what is known of the characters


def test_the_letters_of_a_syllable_are_those_of_its_decomposition():
    codes = repertoire("hangul").codes
    assert len(codes) == 19 * 21 * 28
    columns, _ = known_of(codes, "hangul")
    for n in range(0, len(codes), 37):
        letters = columns["initial"][n] + columns["vowel"][n] + columns["final"][n]
        assert letters == unicodedata.normalize("NFD", chr(codes[n]))


@pytest.mark.parametrize("script", ["han", "han-all"])
def test_chinese_characters_are_those_that_unicode_calls_so(script):
    codes = set(repertoire(script).codes)
    named = {
        code for code in range(0x323B0) if unicodedata.name(chr(code), "").startswith("CJK UNIFIED IDEO")
    }
    if script == "han":
        named &= set(range(0x4E00, 0xA000))
    assert named <= codes  # this Python's Unicode may be older than the ranges
    others = {code for code in codes - named if unicodedata.category(chr(code)) != "Cn"}
    assert len(others) == (12 if script == "han-all" else 0)  # unified in truth, and called compatible
    assert all(unicodedata.normalize("NFC", chr(code)) == chr(code) for code in others)


@pytest.mark.parametrize("is_packed", [False, True])
def test_radicals_are_read_from_unihan(tmp_path, is_packed):
    text = "# comment\nU+4E01\tkRSUnicode\t1.1 2.0\nU+8BA0\tkRSUnicode\t149'.0\nU+4E01\tkTotalStrokes\t2\n"
    name = "Unihan_IRGSources.txt"
    if is_packed:
        (tmp_path / f"{name}.bz2").write_bytes(bz2.compress(text.encode()))
    else:
        (tmp_path / name).write_text(text)
    assert radicals_of([tmp_path / "none", tmp_path]) == {0x4E01: "1", 0x8BA0: "149"}


def test_unknown_radicals_are_said(monkeypatch):
    monkeypatch.setattr("scripts.characters.repertoire.radicals_of", dict)
    columns, line = known_of([0x4E00, 0x4E01], "han")
    assert columns == {"radical": ["", ""]}
    assert "2 of 2" in line
    assert "unicode-data" in line


def test_the_benchmark_draws_with_both(fonts, flags, capsys):
    from scripts.bench_characters import BenchFlags, main

    main(BenchFlags(script=flags["script"], fonts=(fonts,), characters=20, workers=1, rounds=1, size=24))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("| FreeType alone |")
    assert lines[-1].startswith("| `render_characters` |")
