"""The heads that are compared on characters, as flags of `train_classifier`."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.common.jobs import Contender, Job

EACH_TENTH = " ".join(f"{n}/10" for n in range(1, 10))  # of the steps
TAXONOMY = "SET/taxonomy.csv"  # the table of radicals in the folder of the set

# Every flag is spelled out: a row must keep its meaning when a default changes.
_BLIND = {  # nothing is known of the labels
    "prototype": Contender(
        "prototype: class means",
        "--head prototype --grouping index --no-prior --images-of-a-class 2 --refresh-images 16 "
        f"--mine-at {EACH_TENTH}",
    ),
    "prototype-new": Contender(
        "prototype, a tenth of the classes never trained, one picture a class",
        "--head prototype --grouping index --no-prior --images-of-a-class 2 --refresh-images 1 "
        f"--hold-out-classes 0.1 --mine-at {EACH_TENTH}",
    ),
    "flat": Contender("flat", "--head flat --grouping index --no-prior"),
    "flat-chunked": Contender("flat, chunked", "--head flat --chunk-size 32 --grouping index --no-prior"),
    "sampled": Contender("sampled softmax", "--head sampled --samples 512 --grouping index --no-prior"),
    "mach": Contender(
        "MACH: several hashes", "--head mach --hashes 16 --buckets 256 --grouping index --no-prior"
    ),
    "grouped-index": Contender(
        "grouped, consecutive (the paper's)",
        "--head grouped --modulation scale-shift --grouping index --no-prior",
    ),
    "grouped-discovered": Contender(
        "grouped, discovered groups",
        "--head grouped --modulation scale-shift --grouping discovered --no-prior",
    ),
    "grouped-random": Contender(
        "grouped, random groups", "--head grouped --modulation scale-shift --grouping random --no-prior"
    ),
    "grouped-linear": Contender("grouped-linear", "--head grouped-linear --grouping index --no-prior"),
    "grouped-low-rank": Contender(
        "grouped-low-rank, rank 16", "--head grouped-low-rank --rank 16 --grouping index --no-prior"
    ),
}
_ORACLES = {  # told how a syllable is made
    "grouped-aligned": Contender(
        "grouped, aligned by 19 x 21 x 28",
        "--head grouped --modulation scale-shift --grouping aligned --radices 19,21,28 --no-prior",
    ),
    "factored": Contender(
        "factored: a softmax for each letter",
        "--head factored --grouping aligned --radices 19,21,28 --no-prior",
    ),
}


def contenders_of(script: str) -> dict[str, Contender]:
    """What is compared on a script."""
    if script == "hangul":
        return _BLIND | _ORACLES
    by_radical = Contender(
        "grouped-linear, by radical",
        f"--head grouped-linear --grouping taxonomy --taxonomy {TAXONOMY} --no-prior",
    )
    return _BLIND | {"grouped-radical": by_radical}


@dataclass(frozen=True)
class CharacterJob(Job):
    """One run. A row says `SET/taxonomy.csv`, wherever the set lies."""

    def flags(self) -> list[str]:
        """The flags of the trainer."""
        assert self.data is not None
        place = f"{self.data.flag}/{TAXONOMY[4:]}"
        return [place if word == TAXONOMY else word for word in super().flags()]
