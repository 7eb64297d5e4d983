"""The means of the other tests here."""

import os
import pickle
from pathlib import Path

from injection import KILLED, Disturbed, contents, restore

from sqrtvocab.appended import AppendedFile
from sqrtvocab.atomic import write_json


def test_a_watched_process_tells_what_kills_leave(forked, tmp_path: Path) -> None:
    inside, log = tmp_path / "inside", tmp_path / "steps"

    def main() -> int:
        folder = inside / "folder"
        folder.mkdir()
        write_json(folder / "document.json", {"a": "b"})
        file = AppendedFile(folder / "lines")
        file.write(b"one\n")
        descriptor = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"some bytes")
        (folder / "raw").rename(folder / "renamed")
        file.cut(2)
        (folder / "document.json").unlink()
        return 0

    inside.mkdir()
    assert forked(Disturbed(main, inside, log=log), [], tmp_path, {}).wait(60).code == 0
    assert contents(inside) == {"folder/lines": b"on", "folder/renamed": b"some bytes"}
    steps = pickle.loads(log.read_bytes())
    for at, step in enumerate(steps):
        restore(inside, {})
        killed = forked(Disturbed(main, inside, at, "kill"), [], tmp_path, {}).wait(60)
        assert killed.code == KILLED, killed
        assert contents(inside) == step.left, step.place
    assert {"folder/raw": b"some ", "folder/lines": b"one\n"}.items() <= steps[-4].left.items()
