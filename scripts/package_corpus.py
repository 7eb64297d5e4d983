"""Make a corpus of prose and technical text from Debian packages that anyone can install.

    python scripts/package_corpus.py --list                              # the packages, and their sizes
    python scripts/package_corpus.py --out runs/packages                 # fetch them, and make the corpus
    python scripts/package_corpus.py --packages linux-doc 'manpages-*' --out runs/some
    python scripts/package_corpus.py --debs FOLDER --out runs/packages   # .deb files that are here: no apt
    train_lm --data runs/packages --tokenizer train:100000

Packages are fetched by `apt-get download` into a temporary folder and read there: nothing is installed, and
nobody need be root. One document in 50 is for validation, by its path; no paragraph comes twice.
manifest.json in --out names the packages, their versions and licences, and the bytes of text that each gave.
"""

from __future__ import annotations

import builtins
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.common.command import make_folder, read_flags, run_script, say
from sqrtvocab.errors import UserError
from sqrtvocab.flags import Flags

if TYPE_CHECKING:  # --help must not wait for them
    from scripts.corpus.packages import Offer, Package
    from scripts.corpus.selection import Document

PACKAGES = (
    # Technical English: manuals, and the whole documentation of a kernel and of a few large programs.
    "linux-doc", "python3-doc", "manpages", "manpages-dev", "freebsd-manpages", "perl-doc", "git-doc",
    "postgresql-doc", "python-django-doc", "vim-runtime", "zsh-doc", "apache2-doc", "harden-doc",
    "debian-policy", "debian-history",
    # Prose, and dictionaries of sentences. (Not dict-wn, which has a sentence again for each synonym.)
    "anarchism", "fortunes", "dict-gcide", "dict-foldoc", "dict-jargon", "dict-devil", "dict-bouvier",
    # In many languages.
    "manpages-*", "fortunes-??", "debian-handbook", "debian-reference-*", "developers-reference*",
    "debian-faq*", "maint-guide*", "installation-guide-amd64",
)  # fmt: skip
_FILES = ("train.txt", "valid.txt", "manifest.json")


@dataclass(frozen=True)
class CorpusFlags(Flags):
    """Make a corpus from Debian packages."""

    out: Path | None = None
    """Folder to write to: train.txt, valid.txt and manifest.json."""
    packages: tuple[str, ...] = ()
    """Names of packages, or shell patterns; by default those of --list. With --debs: which of them."""
    debs: Path | None = None
    """A folder with .deb files to read instead of fetching any."""
    list: bool = False
    """Show what would be fetched, and end."""
    overwrite: bool = False
    """Replace the corpus in the folder."""

    def problems(self) -> builtins.list[str]:  # `list` is the flag here
        found = super().problems()
        if self.out is None and not self.list:
            found.append("--out FOLDER is missing (or --list, to see the packages)")
        if self.debs is not None and not self.debs.is_dir():
            found.append(f"--debs {self.debs}: no such folder")
        return found


def main(config: CorpusFlags) -> None:
    """Fetch, read, choose, write."""
    if config.list or config.out is None:
        show_packages(config)
        return
    out = prepare_folder(config.out, config.overwrite)
    if config.debs is not None:
        packages = open_packages(sorted(config.debs.glob("*.deb")), config.packages)
        make(packages, out)
    else:
        with tempfile.TemporaryDirectory(prefix="package_corpus-") as folder:
            make(open_packages(fetch_all(find(config.packages), Path(folder)), ()), out)


def show_packages(config: CorpusFlags) -> None:
    """Print a line for each package."""
    if config.debs is not None:
        for package in open_packages(sorted(config.debs.glob("*.deb")), config.packages):
            print(f"{package.name:<32} {package.version}")
        return
    offers = find(config.packages)
    for offer in offers:
        print(f"{offer.name:<32} {offer.size / 1e6:>6.1f} MB  {offer.version}")
    print(f"{len(offers)} packages, {sum(offer.size for offer in offers) / 1e6:,.0f} MB to fetch")


def prepare_folder(out: Path, overwrite: bool) -> Path:
    """Make the folder of `--out`.

    Raises:
        UserError: it holds something.
    """
    make_folder(out)
    there = {path.name for path in out.iterdir()}
    if "manifest.json" in there and there <= set(_FILES):
        if not overwrite:
            raise UserError(f"--out {out} holds a corpus; name another folder, or --overwrite")
    elif there:
        raise UserError(f"--out {out}: not empty, and no corpus of packages; name another folder")
    return out


# ---- packages ----


def find(patterns: Sequence[str]) -> list[Offer]:
    """What apt has of `--packages`, or of the default ones: of these, not every release has all."""
    from scripts.corpus.packages import offers

    return offers(patterns or PACKAGES, must_exist=bool(patterns))


def fetch_all(offers: Sequence[Offer], folder: Path) -> list[Path]:
    """Download with a progress bar."""
    from tqdm import tqdm

    from scripts.corpus.packages import fetch

    size = sum(offer.size for offer in offers)
    with tqdm(total=size, unit="B", unit_scale=True, desc="fetching", leave=False, disable=None) as bar:
        return fetch(offers, folder, bar.update)


def open_packages(paths: Sequence[Path], patterns: Sequence[str]) -> list[Package]:
    """The packages in files, by name, each once; those that `patterns` name, if there are any.

    Raises:
        UserError: there is none, or a file is no package.
    """
    from fnmatch import fnmatchcase

    from scripts.corpus.packages import Package

    opened = {package.name: package for package in map(Package.open, paths)}
    if lacking := [each for each in patterns if not any(fnmatchcase(name, each) for name in opened)]:
        raise UserError(f"--packages: no {', '.join(lacking)} in the folder of --debs")
    if not opened:
        raise UserError("--debs: no .deb file in the folder; apt-get download fetches some")
    wanted = patterns or ["*"]
    return [opened[name] for name in sorted(opened) if any(fnmatchcase(name, each) for each in wanted)]


# ---- the corpus ----


def make(packages: Sequence[Package], out: Path) -> None:
    """Read the packages, choose, and write the three files, the manifest last."""
    from tqdm import tqdm

    from lm.text.tokenizer import END
    from scripts.corpus.selection import split
    from sqrtvocab.atomic import write_bytes, write_json

    whole = sum(package.installed for package in packages)
    with tqdm(total=whole, unit="B", unit_scale=True, desc="reading", leave=False, disable=None) as bar:
        documents, licences = read(packages, bar.update)
    splits = split(documents, lambda items: tqdm(items, desc="comparing", leave=False, disable=None))
    if not all(splits):
        raise UserError(f"{len(documents)} documents are too few to train and to validate; add --packages")

    (out / "manifest.json").unlink(missing_ok=True)
    facts: dict[str, Any] = {}
    for name, chosen in zip(("train", "valid"), splits, strict=True):
        # A text that spells the separator out would be two.
        texts = (document.text.replace(END, "") for document in chosen)
        content = f"\n{END}\n".join(texts).encode() + b"\n"
        write_bytes(out / f"{name}.txt", content)
        digest = hashlib.sha256(content).hexdigest()
        facts[name] = {"documents": len(chosen), "bytes": len(content), "sha256": digest}
    used: Counter[str] = Counter()
    for document in (*splits[0], *splits[1]):
        used[document.package] += len(document.text.encode())
    rows = [
        {
            "name": package.name,
            "version": package.version,
            "licences": licences[package.name],
            "bytes": used[package.name],
        }
        for package in packages
    ]
    write_json(out / "manifest.json", {**facts, "packages": rows})
    for package in sorted(packages, key=lambda package: -used[package.name]):
        names = ", ".join(licences[package.name][:3]) or "not machine-readable"
        print(f"{used[package.name] / 1e6:>7.2f} MB  {package.name} {package.version} ({names})")
    for name, fact in facts.items():
        print(f"{fact['bytes'] / 1e6:>7.2f} MB  {name}.txt, {fact['documents']:,} documents")


def read(
    packages: Sequence[Package], done: Callable[[int], object]
) -> tuple[list[Document], dict[str, list[str]]]:
    """What is new in each package, and its licences; `done` is told of the bytes read."""
    from scripts.corpus.cleaning import text_of
    from scripts.corpus.packages import licences
    from scripts.corpus.selection import Document, Novelty, parts

    novelty, documents = Novelty(), []
    terms: dict[str, list[str]] = {}
    for package in packages:
        texts: dict[str, str] = {}
        notice = ""
        for path, content in package.files():
            if path == f"usr/share/doc/{package.name}/copyright":
                notice = content.decode("utf-8", "replace")
            elif text := text_of(path, content):
                texts[path] = text
            done(len(content))
        terms[package.name] = licences(notice)
        # Sources first: what is a page of HTML besides, with all its menus, is no news then.
        for path in sorted(texts, key=lambda path: (".htm" in path, path)):
            for part in parts(Document(package.name, path, texts[path])):
                if new := novelty.new_part(part):
                    documents.append(new)
    if idle := sorted(terms.keys() - {document.package for document in documents}):
        say(f"no text that is new: {', '.join(idle)}")
    return documents, terms


if __name__ == "__main__":
    raise SystemExit(run_script(main, lambda: read_flags(CorpusFlags, __doc__)))
