"""A figure that is printed in several places has one source, and all places agree with it."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What the paper says; beside its own figures here.
PAPER = {"3.7x", "2.9x", "4.10 → 0.83 G"}


def rows_of(name):
    with (ROOT / "docs" / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def table_of(page, heading):
    """The first table below a line that begins so: {first cell: other cells}."""
    below = (ROOT / page).read_text("utf-8").partition(f"\n{heading}")[2]
    table = re.search(r"^\|.*?(?=\n\n|\Z)", below, flags=re.DOTALL | re.MULTILINE)
    rows = [line.strip().strip("|").split("|") for line in table[0].splitlines()]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows[2:]}


def times_less(ratio):
    """5.68 -> 5.7x, 3.35 -> 3.35x: two or three digits."""
    return f"{ratio:.1f}x" if ratio >= 5 else f"{ratio:.2f}x"


def facts():
    """(name, value as printed, {page: pattern whose only group is that value})."""
    claims = "docs/results/README.md"

    # ---- what the heads cost ----
    cost = table_of("docs/results/heads.md", "train N=4,096 d=128 V=50,257")
    for said, row in {
        "`flat`: linear": "flat",
        "`flat`, exact": "flat, chunked",
        "torch's adaptive": "peer: torch adaptive",
        "`grouped`: the": "grouped",
        "`grouped-linear` ": "grouped-linear",
    }.items():
        ms, faster, megabytes, less = (f"{float(cell.replace(',', '')):,.0f}" for cell in cost[row][:4])
        columns = {
            "time": f"{ms} ms",
            "faster": f"{faster}x",
            "memory": f"{megabytes} MB",
            "less": f"{less}x",
        }
        for place, (column, value) in enumerate(columns.items()):
            pattern = rf"^\| {re.escape(said)}[^|]*" + r"\|[^|]*" * place + r"\| ([^|]*) \|"
            yield f"{row}, {column}", value, {"README.md": pattern}
    times = {name: float(cells[0].replace(",", "")) for name, cells in cost.items()}
    for name, pattern in {
        "flat": r"takes (1/\d+) of flat's time",
        "flat, chunked": r"and (1/\d+) of exact chunked's",
    }.items():
        share = f"1/{times[name] / times['grouped-linear']:.0f}"
        yield f"grouped-linear's share of {name}'s time", share, {claims: pattern}

    # ---- memory, FLOPs, throughput ----
    peaks = {
        (row["setting"], row["size"], row["model"]): int(row["peak_bytes"]) for row in rows_of("memory.csv")
    }
    for setting, said in {"fp32": "in float32", "half": "in half precision"}.items():
        ratios = [
            peaks[setting, size, "GPT-2"] / peaks[setting, size, "grouped"] for size in ("8.1 M", "19.3 M")
        ]
        pages = {claims: rf"against GPT-2 .*?([\d.]+x, [\d.]+x), [\d.]+x {said}"}
        if setting == "half":
            pages = {claims: rf"sides: against GPT-2 .*?in float32, ([\d.]+x, [\d.]+x), [\d.]+x {said}"}
        yield f"memory {said}", ", ".join(map(times_less, ratios)), pages
    ratio = peaks["fp32", "8.1 M", "GPT-2"] / peaks["fp32", "8.1 M", "grouped"]
    yield "memory at 8.1 M", f"{ratio:.1f}x", {"README.md": r"yes, ([\d.]+x) in float32"}
    for said, model in {
        "GPT2LMHeadModel": "GPT-2",
        "GPTNeoForCausalLM": "GPT-Neo",
        "grouped": "grouped",
    }.items():
        gib = peaks["fp32", "8.1 M", model] / 2**30
        yield (
            f"memory of {model}",
            f"{gib:.2f}",
            {"docs/lm.md": rf"^\| `?{said}`? +\| +(\d+\.\d\d) \| +\d\.\d\d \|$"},
        )
    speed = {row["model"]: row for row in rows_of("throughput_flops.csv") if row["size"] == "8.1 M"}
    adds = {model: int(row["multiply_adds"]) / 1e9 for model, row in speed.items()}
    flops = f"{adds['GPT-2']:.2f} → {adds['grouped']:.2f} G"
    yield (
        "FLOPs",
        flops,
        {"README.md": r"- ([\d.]+ → [\d.]+ G) FLOPs: yes", claims: r"\| ([\d.]+ → [\d.]+ G) mult"},
    )
    ratio = float(speed["grouped"]["tokens_per_s"]) / float(speed["GPT-2"]["tokens_per_s"])
    pages = {
        "README.md": r"yes, ([\d.]+x) on one CPU",
        claims: r"\| ([\d.]+x) GPT-2, [\d.]+x GPT-Neo, on one",
    }
    yield "throughput", f"{ratio:.1f}x", pages

    # ---- quality ----
    losses = {}
    for row in rows_of("heads_lm.csv"):
        if (
            "--hidden-size 128 " in row["settings"]
            and row["seed"] == "0"
            and "--max-steps 300 " in row["settings"]
        ):
            losses.setdefault(row["contender"], []).append(float(row["loss"]))
    best = {contender: min(values) for contender, values in losses.items()}
    for contender, readme, claimed in (
        ("grouped", r"not its head \(([\d.]+) against", r"the paper's literal head ([\d.]+),"),
        ("flat-tied", r"against ([\d.]+) nats\)", r"GPT-2 ([\d.]+), GPT-Neo"),
    ):
        yield f"loss of {contender}", f"{best[contender]:.2f}", {"README.md": readme, claims: claimed}
    three = [
        float(row["loss"])
        for row in rows_of("heads_lm.csv")
        if row["contender"] == "grouped-linear" and "--lr 0.008" in row["settings"]
        and "--hidden-size 128 " in row["settings"] and "--max-steps 300 " in row["settings"]
    ]  # fmt: skip
    mean = sum(three) / len(three)
    yield "loss of grouped-linear", f"{mean:.2f}", {
        "README.md": r"`grouped-linear` is better, ([\d.]+)", claims: r"with both \*\*([\d.]+)\*\*",
    }  # fmt: skip
    yield "loss of grouped-linear, exactly", f"{mean:.3f}", {claims: r"no compromise: ([\d.]+) ±"}

    # ---- small vocabularies ----
    page = (ROOT / "docs/results/vocabulary.md").read_text("utf-8")
    crossing = re.search(r"^\*\*Below V ≈ ([\d,]+) nobody needs", page, flags=re.MULTILINE)[1]
    pages = {"README.md": r"fewer than about ([\d,]+): ", claims: r"Below V ≈ ([\d,]+) tokens"}
    yield "where the heads cross", crossing, pages

    # ---- images ----
    last = {row["run"].partition(" (")[0]: row for row in rows_of("classification.csv")}
    right = {run: 100 * float(row["accuracy/overall"]) for run, row in last.items()}
    yield "184,320 classes, flat", f"{right['flat']:.0f} %", {"README.md": r"grouped learns: (\d+ %) against"}
    aligned = f"{right['grouped, aligned']:.0f} %"
    yield (
        "184,320 classes, aligned",
        aligned,
        {"README.md": r"against (\d+ %) in 30", claims: r"nearly everything\*\*: (\d+ %)"},
    )
    index = f"{right['grouped, index']:.1f} %"
    yield (
        "184,320 classes, index",
        index,
        {"README.md": r"but ([\d.]+ %) with", claims: r"429 groups: ([\d.]+ %) of"},
    )

    # ---- characters ----
    for contender, said in {"factored": "told", "prototype": "told nothing"}.items():
        scored = [row for row in rows_of("characters_hangul.csv") if row["contender"] == contender]
        best = max(scored, key=lambda row: float(row["accuracy"]))  # on the validation families
        pages = {
            claims: rf"`{contender}`, {said}[^;]*?, ([\d.]+ %)[;.]",
            "docs/results/characters.md": rf"^\| `{contender}`, {said}.*\| \*\*([\d.]+ %)\*\* \|$",
        }
        if contender == "prototype":
            pages["README.md"] = r"\*\*`prototype`\*\*; ([\d.]+ %) of 11,172"
        yield f"Hangul, {contender}", f"{100 * float(best['test_accuracy']):.1f} %", pages

    scored = [row for row in rows_of("characters_han.csv") if row["contender"] == "prototype"]
    han = max(scored, key=lambda row: float(row["accuracy"]))
    pages = {
        claims: r"to tell: `prototype` ([\d.]+ %)",
        "docs/results/characters.md": r"`prototype` names \*\*([\d.]+ %)\*\*",
    }
    yield "Han", f"{100 * float(han['test_accuracy']):.1f} %", pages

    # ---- the quickstarts: what the presets promise is what their pages say ----
    quick = table_of("docs/classifier.md", "After the same 7,680 images")["accuracy"]
    presets = "classifier/presets.py"
    yield (
        "quickstart, grouped",
        f"{float(quick[0].rstrip(' %')):.0f} %",
        {presets: r"quickstart  +# accuracy about (\d+ %)"},
    )
    yield (
        "quickstart, flat",
        f"{float(quick[1].rstrip(' %')):.0f} %",
        {presets: r"--head flat  +# accuracy about (\d+ %)"},
    )
    log = (ROOT / "docs/LOG.md").read_text("utf-8")
    best = re.search(r"\*\*128\*\* \| \*\*0.003\*\* .*\*\*([\d.]+) %\*\* \|$", log, flags=re.MULTILINE)[1]
    yield "the fast preset", f"{best} %", {"docs/classifier.md": r"([\d.]+ %) of 2,000 validation"}
    yield "the fast preset, about", f"{float(best):.0f} %", {presets: r"fast  +# accuracy about (\d+ %)"}
    ended = re.search(r"\*\*900\*\* .*\*\*([\d.]+)\*\* \|$", log, flags=re.MULTILINE)[1]
    pages = {
        "lm/presets.py": r"fast  +# validation loss ([\d.]+)",
        "docs/lm.md": r"end at ([\d.]+) nats on the excerpt",
    }
    yield "the fast preset of train_lm", ended, pages
    page = (ROOT / "docs/lm.md").read_text("utf-8")
    told = re.search(r"a validation loss of ([\d.]+), .*?(\d+ %) token accuracy", page, flags=re.DOTALL)
    loss, accuracy = told.groups()
    yield "quickstart of train_lm, loss", loss, {"lm/presets.py": r"Validation loss ([\d.]+),"}
    yield "quickstart of train_lm, accuracy", accuracy, {"lm/presets.py": r"(\d+ %) of the tokens right"}


FACTS = list(facts())


def matches(page, pattern):
    return list(re.finditer(pattern, (ROOT / page).read_text("utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize(("value", "pages"), [fact[1:] for fact in FACTS], ids=[fact[0] for fact in FACTS])
def test_every_place_says_what_the_source_says(value, pages):
    for page, pattern in pages.items():
        said = [match[1] for match in matches(page, pattern)]
        assert said == [value] * len(said), f"{page}: {pattern}"
        assert said, f"{page} no longer says it: {pattern}"


def test_every_figure_of_the_readme_has_a_source():
    text = (ROOT / "README.md").read_text("utf-8")
    claimed = [
        match.span(1)
        for _, _, pages in FACTS
        for match in matches("README.md", pages.get("README.md", "(?!)"))
    ]
    prose = re.sub(r"```.*?```", lambda block: " " * len(block[0]), text, flags=re.DOTALL)
    figures = re.finditer(r"[\d.]+ → [\d.]+ G\b|\d[\d,.]* ?(?:x\b|%|ms\b|MB\b|GB\b|GiB\b|nats\b)", prose)
    for figure in figures:
        told = any(start <= figure.start() and figure.end() <= stop + 5 for start, stop in claimed)
        assert told or figure[0] in PAPER, f"README.md says {figure[0]!r}, which no record does"
