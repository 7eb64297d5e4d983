"""The `shapesgen` command. What is heavy is imported by the command that needs it, so that help is quick."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from shapesgen.attributes import ATTRIBUTES, AttributeSpace
from shapesgen.choices import Format, RotationCue, Sampling
from sqrtvocab.errors import UserError, exit_code, shortened
from sqrtvocab.flags import one_line_errors
from sqrtvocab.help import answer_help_of

if TYPE_CHECKING:
    from shapesgen.recipe import Recipe

MAX_WORKERS = 1_024  # more is a slip of the finger, and would bring the machine down

Only = UseAppendAction[tuple[str, ...]]


@dataclass
class Render:
    """Write the image set to disk. Run again after an interruption, it continues where it was.

    By default all 184,320 classes with 10 images each, split 8/1/1 into train, validation and test.
    """

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("shapesgen render --out shapes", "all 1,843,200 images, 5.7 GB: minutes"),
        ("shapesgen render --out some --only shape=circle,star", "a part of the classes"),
        ("shapesgen render --out all --part 1/4", "the first of four machines"),
    )

    out: Annotated[Path, arg(metavar="DIR")]
    """Folder to write to."""
    only: Annotated[Only, arg(metavar="ATTRIBUTE=OPTION,...")] = ()
    """Keep only these options of an attribute, for instance shape=circle,star. Can be given several times.
    Labels are numbered from 0 within what is kept."""
    classes: Annotated[str | None, arg(metavar="A:B")] = None
    """Only the classes A to B - 1. They keep their labels."""
    images_per_class: Annotated[int, arg(metavar="N")] = 10
    """Images of each class, over all splits."""
    sampling: Sampling = "balanced"
    """balanced: the same number of images for every class. random: every attribute of every image is drawn
    independently, as in the paper, so that the numbers vary around it."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Another seed gives other positions, noise and order."""
    rotation_cue: RotationCue = "notch"
    """notch: cut a small notch at the foot of every shape. none: nothing; a third of the classes then cannot
    be told apart (see `shapesgen ceiling`)."""
    format: Format = "parquet"
    """folder is for at most 100,000 images."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes. By default one for each core, or one in all if there is little to do."""
    part: Annotated[str, arg(metavar="I/N")] = "1/1"
    """Write only part I of N, for an array of machines that share the folder, or whose folders are merged."""
    overwrite: bool = False
    """Delete the set in the folder and begin afresh."""

    def run(self) -> int:
        from shapesgen.layout import shards_of
        from shapesgen.writer import write_set

        part = _pair("--part", "I/N", "/", self.part)
        if not 1 <= part[0] <= part[1]:
            raise UserError(f"--part must be I/N with 1 <= I <= N, got {self.part}")
        if self.overwrite and part != (1, 1):
            raise UserError("--overwrite would delete what the other parts write; drop one of the two flags")
        recipe = self._recipe()
        workers = _workers(self.workers, recipe.num_images // part[1])
        done = write_set(
            recipe, self.out, self.format, workers, part, self.overwrite, progress=sys.stderr.isatty()
        )
        kept = f" ({done.kept:,} were there already)" if done.kept else ""
        rate = (done.images - done.kept) / done.seconds
        print(
            f"{done.images:,} images{kept}, {done.bytes / 1e6:,.1f} MB in {self.out}, {done.seconds:.1f} s, "
            f"{rate:,.0f} images/s, {done.bytes / max(done.images, 1):,.0f} bytes an image"
        )
        if done.missing:
            print(
                f"{done.missing} of {len(shards_of(recipe))} shards are still to come from other parts; "
                "the part that finishes last writes the manifest"
            )
        return 0

    def _recipe(self) -> Recipe:
        from shapesgen.recipe import Recipe

        classes = None if self.classes is None else _pair("--classes", "A:B", ":", self.classes)
        with _naming_flags():
            return Recipe(
                space=_space(self.only),
                classes=classes,
                images_per_class=self.images_per_class,
                sampling=self.sampling,
                seed=self.seed,
                rotation_cue=self.rotation_cue,
            )


@dataclass
class Verify:
    """Check every shard of a set: present, readable, labels and pixels as in its manifest."""

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("shapesgen verify shapes", "every shard against the manifest"),
        ("shapesgen verify shapes --workers 1", "without other processes"),
        ("shapesgen verify shapes && echo good", "the exit code tells"),
    )

    dir: Positional[Path]
    """Folder of the set."""
    workers: Annotated[int | None, arg(metavar="N")] = None
    """Processes. By default one for each core, or one in all if there is little to do."""

    def run(self) -> int:
        from shapesgen.layout import read_manifest
        from shapesgen.verifier import verify_set

        recipe, _, records = read_manifest(self.dir)
        workers = _workers(self.workers, recipe.num_images)
        problems = verify_set(self.dir, workers, progress=sys.stderr.isatty())
        if not problems:
            print(f"{recipe.num_images:,} images in {len(records)} shards: all as in the manifest")
            return 0
        for problem in problems:
            print(problem, file=sys.stderr)
        print(
            f"{len(problems)} of {len(records)} shards, or their records, are damaged; "
            f"`shapesgen render --out {self.dir}` with the same settings writes just these again",
            file=sys.stderr,
        )
        return 1


@dataclass
class Describe:
    """Print the attributes of classes, or the class with given attributes."""

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("shapesgen describe 0 184319", "the attributes of two classes"),
        ("shapesgen describe 7 --only size=huge", "numbered within what is kept"),
        (
            "shapesgen describe --shape star --pattern solid --rotation 0 --colour red --size huge "
            "--texture none --opacity 1.0 --border solid",
            "the class with these",
        ),
    )

    class_id: Positional[tuple[int, ...]] = ()
    """Ids to describe."""
    shape: str | None = None
    """With all eight attributes: print the id of that class."""
    pattern: str | None = None
    rotation: str | None = None
    colour: str | None = None
    size: str | None = None
    texture: str | None = None
    opacity: str | None = None
    border: str | None = None
    only: Annotated[Only, arg(metavar="ATTRIBUTE=OPTION,...")] = ()
    """Number the classes within these options, as `render --only` does."""

    def run(self) -> int:
        space = _space(self.only)
        given = {name: value for name in ATTRIBUTES if (value := getattr(self, name)) is not None}
        if bool(given) == bool(self.class_id):
            raise UserError("give either class ids or the eight attributes, --shape to --border")
        try:
            if given:
                print(space.class_id(**given))
                return 0
            for class_id in self.class_id:
                attributes = " ".join(f"{name}={option}" for name, option in space.describe(class_id).items())
                full = f" (full id {space.full_ids(class_id)})" if self.only else ""
                print(f"{class_id}{full}: {attributes}")
        except ValueError as error:
            raise UserError(str(error)) from None
        return 0


@dataclass
class Ceiling:
    """Find the highest accuracy that any classifier can reach, by rendering every class."""

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("shapesgen ceiling", "all classes: a quarter of a minute"),
        ("shapesgen ceiling --rotation-cue none", "without the notch"),
        ("shapesgen ceiling --only size=huge", "a part of the classes"),
    )

    only: Annotated[Only, arg(metavar="ATTRIBUTE=OPTION,...")] = ()
    """Only the classes with these options; see `render`."""
    rotation_cue: RotationCue = "notch"
    """See `render`."""

    def run(self) -> int:
        from shapesgen.ceiling import ceiling

        best = ceiling(_space(self.only), self.rotation_cue, progress=sys.stderr.isatty())
        print(f"{best.num_classes:,} classes, {best.distinct:,} of them distinct")
        print(f"highest accuracy  {best.overall:7.2%}")
        for name, share in best.by_attribute.items():
            print(f"  {name:15} {share:7.2%}")
        return 0


@dataclass
class Preview:
    """Draw a contact sheet: all shapes, or the instances of some classes, or what a folder holds."""

    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("shapesgen preview --out sheet.png", "all shapes"),
        ("shapesgen preview --out sheet.png --class-id 7", "its ten images"),
        ("shapesgen preview --out sheet.png --dir shapes", "what a folder holds"),
    )

    out: Annotated[Path, arg(metavar="FILE.png")]
    """Picture to write."""
    class_id: UseAppendAction[tuple[int, ...]] = ()
    """Show instances of this class. Can be given several times."""
    dir: Annotated[Path | None, arg(metavar="DIR")] = None
    """Show the first images of the set in this folder."""
    only: Annotated[Only, arg(metavar="ATTRIBUTE=OPTION,...")] = ()
    """Only these options; see `render`."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """See `render`."""
    rotation_cue: RotationCue = "notch"
    """See `render`."""

    def run(self) -> int:
        from shapesgen import preview
        from shapesgen.recipe import Recipe

        if self.dir is not None:
            if self.class_id or self.only:
                raise UserError("--dir shows a folder as it is; leave out --class-id and --only")
            recipe, rows = preview.from_folder(self.dir)
            first, end = recipe.class_range
            title = f"{self.dir}: {recipe.num_images:,} images of {end - first:,} classes"
        else:
            with _naming_flags():
                recipe = Recipe(space=_space(self.only), seed=self.seed, rotation_cue=self.rotation_cue)
            title = f"shapesgen: {recipe.space.num_classes:,} classes, rotation cue {self.rotation_cue}"
            try:
                rows = preview.instances(recipe, self.class_id) if self.class_id else preview.overview(recipe)
            except ValueError as error:
                raise UserError(f"--class-id: {error}") from None
        preview.save(preview.sheet(title, rows), self.out)
        print(self.out)
        return 0


def _space(only: Sequence[str]) -> AttributeSpace:
    try:
        return AttributeSpace.parse_only(only)
    except ValueError as error:
        raise UserError(f"--only: {error}") from None


def _workers(workers: int | None, images: int) -> int:
    if workers is None:
        if images < 20_000:  # done before other processes would have started
            return 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return cores or 1
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(f"--workers must be 1..{MAX_WORKERS}, got {shortened(str(workers))}")
    return workers


def _pair(flag: str, form: str, separator: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(rf"([0-9]{{1,18}}){separator}([0-9]{{1,18}})", text)
    if match is None:
        raise UserError(f"{flag} must be {form}, got {shortened(text)!r}")
    return int(match[1]), int(match[2])


@contextlib.contextmanager
def _naming_flags() -> Iterator[None]:
    """Turn `images_per_class must be ...` into `--images-per-class must be ...`."""
    try:
        yield
    except ValueError as error:
        field, _, rest = str(error).partition(" ")
        raise UserError(f"--{field.replace('_', '-')} {rest}") from None


COMMANDS: dict[str, Callable[..., Any]] = {
    "render": Render,
    "verify": Verify,
    "preview": Preview,
    "describe": Describe,
    "ceiling": Ceiling,
}
ABOUT = "The procedural image set of 184,320 classes: write, check, see and measure it."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, 1 for a failed run or check, 2 for bad input, 128 + the number of a signal
    such as that of Ctrl-C."""
    try:
        with one_line_errors("shapesgen"):
            answer_help_of(COMMANDS, "shapesgen", ABOUT, arguments)
            command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS, args=arguments, prog="shapesgen", description=ABOUT
            )
    except SystemExit as end:  # help, or bad flags
        return int(end.code or 0)
    kept = "stopped; finished shards are kept, run again to continue"
    with _signals_as_ctrl_c():
        return exit_code("shapesgen", command.run, kept if isinstance(command, Render) else "stopped")


@contextlib.contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Let the signals by which schedulers and terminals end a job clean up as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():  # nobody else may handle signals
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
