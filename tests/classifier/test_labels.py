"""Groups for labels that mean something: `--grouping`, `--radices`, `--taxonomy`; and the prior."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from classifier import cli
from classifier.labels import Labels, make_partition
from classifier.taxonomy import Taxonomy, purity, read_taxonomy
from sqrtvocab import HEADS, Partition
from sqrtvocab.errors import UserError

NAMES = [f"{kind}{number}" for kind in "abc" for number in range(4)]  # a0 ... c3
FLAGS = [
    "--image-size", 16, "--batch-size", 8, "--max-steps", 2, "--eval-every", 1, "--workers", 0,
    "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Twelve classes; those that end in 3 have six times as many pictures as the others."""
    root = tmp_path_factory.mktemp("labels") / "pictures"
    for shade, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        for i in range(30 if name.endswith("3") else 5):
            Image.new("L", (16, 16), 20 * shade + i % 5).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def run(forked, tmp_path, pictures):
    def finish(*flags, main=cli.train_main):
        env = {"SQRTVOCAB_CACHE": str(tmp_path / "cache")}
        base = [*FLAGS, "--data", pictures] if main is cli.train_main else ["--device", "cpu", "--workers", 0]
        return forked(main, [*base, *flags], tmp_path, env).wait()

    return finish


@pytest.fixture
def kinds(tmp_path):
    """A taxonomy: the kind is the last digit, so that consecutive classes are of different kinds."""
    path = tmp_path / "kinds.csv"
    path.write_text("species,kind\n" + "".join(f"{name},kind {name[1]}\n" for name in NAMES))
    return path


def settings(out):
    return json.loads((out / "config.json").read_text())


def test_a_taxonomy_keeps_super_classes_together(run, kinds, tmp_path):
    out = tmp_path / "r"
    result = run("--taxonomy", kinds, "--out", out)
    assert result.code == 0, result.err
    # Three groups of four places for four super-classes of three: 0001 1122 2333.
    assert "taxonomy   4 super-classes; the groups are 66.7% pure: 0 of 3 hold one super-class" in result.err
    assert "prior      the head starts from the frequencies of uneven classes (3 to 24 " in result.err
    assert (settings(out)["grouping"], settings(out)["groups"]) == ("taxonomy", 3)
    metrics = json.loads((out / "last" / "state.json").read_text())["metrics"]
    assert metrics["accuracy/super_class"] >= metrics["accuracy/overall"]
    scored = run(out, "--split", "validation", main=cli.eval_main)
    assert scored.code == 0, scored.err
    assert "super-class" in scored.out
    report = json.loads((out / "eval-validation.json").read_text())["accuracy"]
    assert report["group"] == pytest.approx(
        json.loads((out / "best" / "state.json").read_text())["metrics"]["accuracy/group"]
    )

    kinds.write_text(kinds.read_text().replace("a0,kind 0", "a0,kind 1"))
    again = run("--taxonomy", kinds, "--out", out, "--resume", "auto", "--max-steps", 3)
    assert again.code == 2
    assert "is another run: super classes is " in again.err


@pytest.mark.slow
def test_groups_of_one_super_class_each(run, kinds, tmp_path):
    result = run("--taxonomy", kinds, "--num-groups", 4, "--out", tmp_path / "r")
    assert "the groups are 100.0% pure: 4 of 4 hold one super-class only" in result.err
    result = run("--taxonomy", kinds, "--grouping", "index", "--out", tmp_path / "s")
    assert "the groups are 25.0% pure: 0 of 3 hold one super-class only" in result.err


QUICK = ("flat",)


@pytest.mark.parametrize(
    "head", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in HEADS]
)
def test_groups_by_frequency_are_found_again(run, tmp_path, head):
    """By evaluation, which does not count the training images, for a head with groups and one without."""
    out = tmp_path / "r"
    radices = ["--radices", "3,4"] if "radices" in HEADS[head].needs else []
    result = run("--head", head, "--grouping", "frequency", *radices, "--out", out)
    assert result.code == 0, result.err
    order = json.loads((out / "best" / "order.json").read_text())
    assert order[:3] == [NAMES.index(name) for name in ("a3", "b3", "c3")]
    scored = run(out, "--split", "validation", main=cli.eval_main)
    assert scored.code == 0, scored.err
    trained = json.loads((out / "best" / "state.json").read_text())["metrics"]
    report = json.loads((out / "eval-validation.json").read_text())
    assert report["loss"] == pytest.approx(trained["loss/validation"], rel=1e-5)
    assert report["accuracy"]["group"] == pytest.approx(trained["accuracy/group"])


@pytest.mark.slow
def test_a_head_that_begins_with_the_frequent_classes_is_told_them(run, tmp_path):
    (head,) = [name for name in HEADS if HEADS[name].frequent_first]
    assert run("--head", head, "--out", tmp_path / "r").code == 0
    state = load_file(tmp_path / "r" / "best" / "model.safetensors")
    (order,) = [value for name, value in state.items() if name.endswith(".order")]
    assert order[:3].tolist() == [3, 7, 11]


def test_radices_align_the_groups(run, complaint, tmp_path):
    out = tmp_path / "r"
    result = run("--head", "grouped", "--radices", "3,4", "--out", out)
    assert result.code == 0, result.err
    assert "groups     3 of at most 4 classes (aligned)" in result.err
    assert run(out, main=cli.eval_main).code == 0
    line = complaint(run("--radices", "3,5", "--out", tmp_path / "s"))
    assert line == "train_classifier: --radices 3,5: they make 15 classes, and there are 12"
    line = complaint(run("--grouping", "aligned", "--out", tmp_path / "s"))
    assert "--grouping aligned: nothing tells how these classes are made; use index or random, or" in line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--radices", "3,x"), "--radices 3,x: expected numbers of options, as in 19,21,28"),
        (("--radices", "0,4"), "--radices 0,4: expected numbers of options"),
        (("--radices", "3,4", "--grouping", "index"), "--radices is for --grouping aligned or --head "),
        (("--grouping", "taxonomy"), "--grouping taxonomy needs --taxonomy FILE"),
        (("--radices", "3,4", "--num-groups", 3), "--num-groups needs --grouping index, frequency, random"),
        (("--head", "factored"), "--radices tells how yours are"),
        (("--taxonomy", "none.csv"), "--taxonomy none.csv: cannot be read (No such file or directory)"),
        (("--backbone", "resnet81"), "--backbone resnet81: no such model; did you mean resnet18"),
    ],
)
def test_flags_that_do_not_fit(run, complaint, tmp_path, flags, says):
    assert says in complaint(run(*flags, "--out", tmp_path / "r"))
    assert not (tmp_path / "r").exists()


def test_shapes_have_their_own_structure(bare_train, complaint, tmp_path):
    line = complaint(bare_train("--radices", "2,3", "--out", tmp_path / "r"))
    assert "--radices" in line
    (tmp_path / "t.csv").write_text("a,b\n")
    assert "--taxonomy" in complaint(bare_train("--taxonomy", tmp_path / "t.csv", "--out", tmp_path / "r"))


def test_even_classes_need_no_prior():
    even = Labels(torch.tensor([8, 9, 8]), None, None)
    uneven = Labels(torch.tensor([8, 17, 8]), None, None)
    assert (even.are_uneven, uneven.are_uneven) == (False, True)
    assert even.frequent_first() is None
    assert uneven.frequent_first().tolist() == [1, 0, 2]
    assert uneven.describe_prior(False) == "off; there are uneven classes (8 to 17 training images each)"


# ---- the file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "class,super-class\noak,tree\nelm,tree\nrose,shrub\nmoss,other\n"),
        ("t.csv", "\ufeffoak,tree\n\nelm, tree\nrose,shrub\n"),
        ("t.tsv", "oak\ttree\nelm\ttree\nrose\tshrub\n"),
        ("t.jsonl", "".join(json.dumps({"class": c, "super_class": s}) + "\n" for c, s in
                            (("oak", "tree"), ("elm", "tree"), ("rose", "shrub")))),
    ],
)  # fmt: skip
def test_a_taxonomy_in_any_form(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    taxonomy = read_taxonomy(tmp_path / name, ["elm", "oak", "rose"])
    assert taxonomy.names == ["shrub", "tree"]
    assert taxonomy.super_class.tolist() == [1, 1, 0]
    again = Taxonomy.from_json(json.loads(json.dumps(taxonomy.to_json())))
    assert again.digest == taxonomy.digest
    assert again.right(np.array([0, 0, 2]), np.array([1, 2, 2])) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.csv", "oak,tree\nrose,shrub\n", "no super-class for 'elm' of 3 classes"),
        ("t.csv", "", "no super-class for 'elm', 'oak', 'rose' of 3 classes"),
        ("t.csv", "oak,tree\noak,shrub\n", "'oak' has two super-classes, 'tree' and 'shrub'"),
        ("t.csv", "oak,tree,x\n", "line 1 has 3 columns; expected class, super-class"),
        ("t.csv", "oak,\n", "the class 'oak' has no super-class"),
        ("t.csv", "oak,tree\nelm,tree\nrose,tree\n", "all classes are of one super-class, 'tree'"),
        ("t.csv", 'oak,"tree\n', "not a readable table"),
        ("t.txt", "oak,tree\n", "expected a .csv, .tsv or .jsonl file"),
        ("t.jsonl", "{", "not a readable table"),
        ("t.jsonl", "[1]", "line 1 is no object with fields"),
        ("t.jsonl", '{"class": "oak", "kind": "tree"}', "lacks the field class or super_class; it has class"),
    ],
)
def test_a_taxonomy_that_cannot_be_used(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        read_taxonomy(tmp_path / name, ["elm", "oak", "rose"])
    assert says in str(error.value)
    assert str(error.value).startswith(f"--taxonomy {tmp_path / name}: ")


def test_purity_equals_a_count_by_hand():
    rng = np.random.default_rng(0)
    for groups in (1, 3, 7, 20):
        super_class = rng.integers(0, 5, 20)
        partition = Partition.random(20, groups, seed=groups)
        members = [[] for _ in range(groups)]
        for number, group in enumerate(partition.split(torch.arange(20))[0].tolist()):
            members[group].append(super_class[number])
        most = sum(Counter(group).most_common(1)[0][1] for group in members)
        assert purity(partition, super_class) == (most / 20, sum(len(set(group)) == 1 for group in members))


def test_groups_by_taxonomy_follow_its_super_classes():
    taxonomy = Taxonomy(["x", "y"], np.array([1, 0, 1, 0, 0, 1]))
    partition = make_partition(6, "taxonomy", 2, 0, taxonomy=taxonomy)
    assert partition.split(torch.arange(6))[0].tolist() == [1, 0, 1, 0, 0, 1]
