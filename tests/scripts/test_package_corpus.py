"""A corpus from packages, with small .deb files made here, byte by byte: dpkg need not be installed."""

import gzip
import hashlib
import io
import json
import os
import re
import stat
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from lm.text.sources import open_source
from scripts.corpus.cleaning import from_dictionary, from_html, from_roff, from_rst, text_of
from scripts.corpus.packages import Package, licences, offers
from scripts.corpus.selection import Document, Novelty, paragraphs, parts, split
from scripts.package_corpus import CorpusFlags, main
from sqrtvocab.errors import UserError

COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: GPL-3+
 A long text.
Files: debian/*
License: MIT
License: GPL-3+
"""
SYLLABLES = [a + b for a in "bdklmn" for b in "aeiou"]


def sentence(seed: object, words: int = 30) -> str:
    """Words that nobody else has."""
    digest = hashlib.shake_256(str(seed).encode()).digest(4 * words)
    named = ["".join(SYLLABLES[byte % 30] for byte in digest[4 * n : 4 * n + 4]) for n in range(words)]
    return " ".join(named).capitalize() + "."


def prose(seed: object, length: int = 5) -> str:
    return "\n\n".join(sentence(f"{seed}/{n}") for n in range(length))


def ar(members: dict[str, bytes]) -> bytes:
    whole = b"!<arch>\n"
    for name, content in members.items():
        whole += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        whole += content + b"\n" * (len(content) % 2)
    return whole


def tar(files: dict[str, bytes], compression: str) -> bytes:
    raw = io.BytesIO()
    mode = "w" if compression == "zst" else f"w:{compression}"
    with tarfile.open(fileobj=raw, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    if compression != "zst":
        return raw.getvalue()
    return pa.compress(raw.getvalue(), codec="zstd", asbytes=True)


def make_deb(folder: Path, name: str, files: dict[str, bytes], compression: str = "xz") -> Path:
    control = f"Package: {name}\nVersion: 1.2-3\nInstalled-Size: 4\nDescription: text\n more: of it\n"
    suffix = f".{compression}" if compression else ""
    members = {
        "debian-binary": b"2.0\n",
        f"control.tar{suffix}": tar({"control": control.encode()}, compression),
        f"data.tar{suffix}": tar(files, compression),
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}_1.2-3_all.deb"
    path.write_bytes(ar(members))
    return path


@pytest.fixture
def debs(tmp_path: Path) -> Path:
    """Two packages with 300 pages that nobody else has, and some that are alike."""
    folder = tmp_path / "debs"
    pages = {f"usr/share/doc/a/{n}.txt": prose(n).encode() for n in range(300)}
    pages["usr/share/doc/a/copyright"] = COPYRIGHT.encode()
    pages["usr/share/doc/a/table.txt"] = b"0x00 1234 | 5678 |\n" * 200
    make_deb(folder, "a", pages)
    # The pages again: as HTML, in capitals, with other numbers; and with a word in twelve changed.
    again = {
        f"usr/share/doc/b/{n}.html": prose(n).upper().replace("\n\n", f" {n}<p>").encode() for n in range(100)
    }
    nearly = {
        f"usr/share/doc/b/nearly{n}.txt": re.sub(r"((?:\S+\s+){11})\S+", r"\1changed", prose(n)).encode()
        for n in range(100, 200)
    }
    own = {
        f"usr/share/man/man1/b{n}.1.gz": gzip.compress(b".SH NAME\n" + prose(f"b{n}").encode())
        for n in range(100)
    }
    make_deb(folder, "b", again | nearly | own, "gz")
    return folder


def test_train_lm_reads_the_corpus_and_nothing_is_in_both_splits(debs, tmp_path, capsys):
    main(CorpusFlags(debs=debs, out=tmp_path / "out"))
    source = open_source(str(tmp_path / "out"), 0.1, "text", lambda line: pytest.fail(line))
    train, valid = list(source.train), list(source.validation)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [len(train), len(valid)] == [manifest[name]["documents"] for name in ("train", "valid")]
    assert 3 <= len(valid) <= 25  # of about 500
    whole = train + valid
    assert all(any(sentence(f"{n}/0") in text for text in whole) for n in range(100))
    assert not any("0x00" in text or "GPL-3+" in text for text in whole)
    assert not any(re.search(r"<p>|\.SH", text) for text in whole)
    # All pairs, brute force: no paragraph's words twice, and none for validation mostly in one to train on.
    bags = [[set(re.findall(r"[a-z]+", part.lower())) for text in texts for part in paragraphs(text)]
            for texts in (train, valid)]  # fmt: skip
    long = [[frozenset(bag) for bag in bags[n] if len(bag) > 5] for n in (0, 1)]
    assert len(set(long[0] + long[1])) == len(long[0] + long[1])
    assert max(len(bag & other) / len(bag) for bag in long[1] for other in long[0]) < 0.5
    rows = {row["name"]: row for row in manifest["packages"]}
    assert rows["a"]["version"] == "1.2-3"
    assert rows["a"]["licences"] == ["GPL-3+", "MIT"]
    assert rows["b"]["licences"] == []
    assert sum(row["bytes"] for row in rows.values()) == sum(len(text.encode()) for text in whole)
    for name in ("train", "valid"):
        content = (tmp_path / "out" / f"{name}.txt").read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            manifest[name]["bytes"], manifest[name]["sha256"],
        )  # fmt: skip
    assert "train.txt" in capsys.readouterr().out


def test_the_split_of_a_document_does_not_depend_on_others(debs, tmp_path):
    main(CorpusFlags(debs=debs, out=tmp_path / "both"))
    main(CorpusFlags(debs=debs, packages=("a",), out=tmp_path / "a"))
    main(CorpusFlags(debs=debs, out=tmp_path / "again"))
    assert (tmp_path / "both/train.txt").read_bytes() == (tmp_path / "again/train.txt").read_bytes()

    def pages(file: str) -> set[str]:
        return {text.strip() for text in (tmp_path / file).read_text().split("<|endoftext|>")}

    assert not pages("a/valid.txt") & pages("both/train.txt")
    assert not pages("both/valid.txt") & pages("a/train.txt")
    assert pages("a/valid.txt") & pages("both/valid.txt")


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz", "zst"])
def test_packages_of_any_compression(tmp_path, compression):
    files = {"usr/share/doc/odd/a.txt": b"odd", "usr/b": os.urandom(100_000)}
    package = Package.open(make_deb(tmp_path, "odd", files, compression))
    assert (package.name, package.version, package.installed) == ("odd", "1.2-3", 4096)
    assert dict(package.files()) == files


def test_damaged_packages_are_one_line_that_names_the_file(tmp_path):
    path = make_deb(tmp_path, "a", {"usr/a.txt": os.urandom(10_000)})
    whole = path.read_bytes()
    for content in (b"", b"no archive at all", whole[:-2000], whole[:100], ar({"debian-binary": b"2.0\n"})):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a_1\.2-3_all\.deb: cannot be unpacked"):
            list(Package.open(path).files())


# ---- cleaning


def test_html():
    page = """<html><head><title>A title</title><style>p {}</style></head><body>
    <div class="related" role="navigation"><div>next</div> previous</div><nav>menu</nav>
    <h1>Head<a class="headerlink" href="#">¶</a></h1><p>One &amp;
    <b>two</b>&#233;.<br>Three</p><pre>a
      b</pre><script>var x = "<p>";</script><ul><li>item</ul></body></html>"""
    assert [re.sub(r" +\n", "\n", part.strip()) for part in paragraphs(from_html(page))] == [
        "A title", "Head", "One & twoé.\nThree", "a\n      b", "item",
    ]  # fmt: skip


def test_rst():
    text = """Title
=====

.. module:: csv
   :synopsis: Read.

See :mod:`csv`, :func:`the reader <csv.reader>` or ``code``, **bold**, `a page <http://x>`_::

   2 * 3 * 4
"""
    assert paragraphs(from_rst(text)) == [
        "Title", "See csv, the reader or code, bold, a page:", "   2 * 3 * 4\n",
    ]  # fmt: skip


def test_man_pages():
    page = r""".\" a comment
.TH LS 1 2022
.de XX
macro text
..
.SH "NAMN PÅ"
ls \- list \fIall\fP \(aqfiles\(aq \[u2014] \fB\-\-block\-size\fP=\fI\,S\/\fP
.TP
.BR ls (1),
.B "see this"
.if n .nothing
C:\e\&dir \(lqquoted\(rq
.IP \[bu] 2
item
.It Dv CONSTANT Fa argument
.Xr man 7"""
    assert paragraphs(from_roff(page)) == [
        "NAMN PÅ", "ls - list all 'files' — --block-size=S", "ls(1),\nsee this\nC:\\dir “quoted”", "•\nitem",
        "CONSTANT argument\nman 7",
    ]  # fmt: skip


def test_dictionaries():
    text = "Word \\Word\\, n.\n   Speech.\n   [1913 Webster]\nWork\n   Toil [hard].\n"
    assert paragraphs(from_dictionary(text)) == ["Word \\Word\\, n.\n   Speech.", "Work\n   Toil [hard].\n"]


@pytest.mark.parametrize(
    ("path", "is_text"),
    [
        ("usr/share/doc/x/a.txt", True),
        ("usr/share/doc/x/a.en.html", True),
        ("usr/share/doc/x/a.html.fr.utf8", True),
        ("usr/share/man/de/man3/a.3ssl", True),
        ("usr/share/games/fortunes/de/sayings", True),
        ("usr/share/games/fortunes/off/sayings", False),
        ("usr/share/games/fortunes/es/sayings.fortunes", True),
        ("usr/share/games/fortunes/sayings.dat", False),
        ("usr/share/doc/x/changelog.txt", False),
        ("usr/share/doc/x/copyright", False),
        ("usr/share/doc/x/genindex-A.html", False),
        ("usr/lib/x/a.py", False),
    ],
)
def test_the_path_tells_the_kind(path, is_text):
    content = prose(path).encode()
    assert bool(text_of(path, content)) == is_text
    assert bool(text_of(f"{path}.gz", gzip.compress(content))) == is_text


def test_encodings():
    text = "Grüße aus Köln, schöne Straße. " * 10
    assert text_of("a.txt", text.encode("latin-1")) is None
    page = '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">' + text
    assert text_of("a.html", page.encode("latin-1")) == text.strip()
    one_bad_byte = (text * 100).encode() + b"\xff"
    assert text_of("a.txt", one_bad_byte) == (text * 100).strip()
    hindi = "यह एक छोटा सा पाठ है जिसमें मात्राएँ बहुत हैं। " * 10
    assert text_of("a.txt", hindi.encode()) == hindi.strip()
    assert text_of("a.txt.gz", b"no gzip") is None


# ---- selection


def test_a_long_file_is_several_documents():
    text = prose("long", 1000)
    cut = list(parts(Document("p", "dict", text)))
    assert "\n\n".join(part.text for part in cut) == text
    assert [part.path for part in cut] == [f"dict#{n}" for n in range(len(cut))]
    assert len(cut) > 3
    assert [part.path for part in parts(Document("p", "short", prose(1)))] == ["short"]


def test_a_document_that_is_half_known_is_dropped_whole():
    novelty = Novelty()
    first, second = prose("a", 6), prose("b", 6)
    assert novelty.new_part(Document("p", "1", first)).text == first
    mixed = "\n\n".join([*paragraphs(first)[:4], *paragraphs(second)[:2]])
    assert novelty.new_part(Document("p", "2", mixed)) is None
    mixed = "\n\n".join([*paragraphs(first)[:1], "NAME", *paragraphs(second)[:3]])
    assert novelty.new_part(Document("p", "3", mixed)).text == mixed.partition("\n\n")[2]
    assert novelty.new_part(Document("p", "4", "NAME")) is None


def test_near_equal_paragraphs_are_found_where_words_are_not_set_apart():
    documents = [Document("p", str(n), prose(n)) for n in range(200)]
    held_out = next(document for document in documents if document.is_validation)
    chinese = "".join(chr(0x4E00 + byte * 37 % 9000) for byte in hashlib.shake_256(b"x").digest(120))
    trained = next(document for document in documents if not document.is_validation)
    documents.remove(held_out)
    documents.remove(trained)
    documents.append(Document("p", held_out.path, f"{held_out.text}\n\n前{chinese[:60]}中{chinese[60:]}後"))
    documents.append(Document("p", trained.path, f"{trained.text}\n\n{chinese}"))
    train, valid = split(documents, lambda items: items)
    assert any(chinese in document.text for document in train)
    assert {document.path: document.text for document in valid}[held_out.path] == held_out.text


def test_licences():
    assert licences(COPYRIGHT) == ["GPL-3+", "MIT"]
    assert licences("This package is free.\nLicense: see below") == []


# ---- the command


@pytest.fixture
def apt(tmp_path, monkeypatch) -> Path:
    """`apt-cache` and `apt-get` that know three packages, one of which points to another."""
    store, tools = tmp_path / "store", tmp_path / "tools"
    tools.mkdir()
    make_deb(store, "guide-doc", {})
    make_deb(store, "guide-doc-7", {f"usr/{n}.txt": prose(n).encode() for n in range(200)})
    make_deb(store, "poems", {f"usr/{n}.txt": prose(f"poem {n}").encode() for n in range(200)})
    for name, fields in (
        ("guide-doc", "Size: 900\nDepends: guide-doc-7 (= 7), libc"),
        ("guide-doc-7", "Size: 90000"),
        ("poems", "Size: 90000"),
    ):
        (store / f"{name}.show").write_text(f"Package: {name}\nVersion: 7\n{fields}\n\n")
    cache = f"""#!/bin/sh
    case $1 in
    pkgnames) printf 'guide-doc\\nguide-doc-7\\npoems\\nghost\\n';;
    show) shift; for name; do cat {store}/"$name".show 2>/dev/null; done; exit 100;;
    esac"""
    get = f"""#!/bin/sh
    test "$1" = download || exit 1
    shift; for name; do cp {store}/"$name"_*.deb . || {{ echo "E: no $name" >&2; exit 100; }}; done"""
    for name, text in (("apt-cache", cache), ("apt-get", get)):
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return store


def test_packages_are_fetched_and_pointers_followed(apt, tmp_path, capsys):
    assert [offer.name for offer in offers(["guide-doc"], True)] == ["guide-doc", "guide-doc-7"]
    assert [offer.name for offer in offers(["p*", "none"], False)] == ["poems"]
    main(CorpusFlags(list=True, packages=("guide-doc",)))
    assert "2 packages" in capsys.readouterr().out
    main(CorpusFlags(out=tmp_path / "out", packages=("guide-doc", "poems")))
    rows = json.loads((tmp_path / "out" / "manifest.json").read_text())["packages"]
    assert {row["name"]: row["bytes"] > 0 for row in rows} == {
        "guide-doc": False, "guide-doc-7": True, "poems": True,
    }  # fmt: skip
    assert "no text that is new: guide-doc\n" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"apt has no none; .*--list"):
        main(CorpusFlags(out=tmp_path / "other", packages=("poems", "none")))
    (apt / "poems_1.2-3_all.deb").unlink()
    with pytest.raises(UserError, match=r"apt-get download: E: no poems; .*--debs"):
        main(CorpusFlags(out=tmp_path / "other", packages=("poems",)))


def test_without_apt_one_line_says_the_way_out(call, tmp_path):
    result = call("package_corpus", "--out", tmp_path / "new", PATH=str(tmp_path))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "apt-cache is not here" in line
    assert "--debs" in line


def test_bad_input_names_the_flag(debs, tmp_path):
    with pytest.raises(UserError, match="--out FOLDER is missing"):
        CorpusFlags()
    with pytest.raises(UserError, match="--debs nowhere: no such folder"):
        CorpusFlags(out=tmp_path, debs=Path("nowhere"))
    with pytest.raises(UserError, match="--packages: no c in the folder"):
        main(CorpusFlags(out=tmp_path / "out", debs=debs, packages=("a", "c")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--debs.*no \.deb file"):
        main(CorpusFlags(out=tmp_path / "out", debs=tmp_path / "empty"))
    make_deb(tmp_path / "small", "c", {"usr/a.txt": prose(1).encode()})
    with pytest.raises(UserError, match="1 documents are too few"):
        main(CorpusFlags(out=tmp_path / "out", debs=tmp_path / "small"))
    assert not any((tmp_path / "out").iterdir())


def test_a_corpus_is_replaced_only_if_asked_and_other_files_never(debs, tmp_path):
    flags = {"debs": debs, "packages": ("a",), "out": tmp_path / "out"}
    main(CorpusFlags(**flags))
    with pytest.raises(UserError, match="--overwrite"):
        main(CorpusFlags(**flags))
    main(CorpusFlags(**flags | {"packages": ("b",)}, overwrite=True))
    rows = json.loads((tmp_path / "out" / "manifest.json").read_text())["packages"]
    assert [row["name"] for row in rows] == ["b"]
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        main(CorpusFlags(**flags, overwrite=True))
