"""The scores of an evaluation against counts by hand and scikit-learn's."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix

from sqrtvocab import Partition
from sqrtvocab.heads import make_head
from sqrtvocab.training.score_report import group_by_classes, groups_in_markdown, score_document, score_lines
from sqrtvocab.training.scores import BINS, PROBABILITY_BINS, ScoreSheet

V, N, D = 23, 400, 6
COUNTS = np.array([1] * 10 + [4] * 6 + [20] * 5 + [60, 100])


@pytest.fixture(params=["grouped-linear", "flat"])
def scored(request, runtime):
    """A head's scores, in uneven batches, and what they were made of."""
    torch.manual_seed(1)
    partition = Partition.random(V, 5, seed=2)
    head = make_head(request.param, D, V, {"partition": partition})
    hidden = 4 * torch.randn(N, D)
    target = torch.multinomial(torch.from_numpy(COUNTS / COUNTS.sum()), N, replacement=True)
    target = torch.where(torch.rand(N) < 0.5, head.predict(hidden), target)  # or nothing would be right
    sheet = ScoreSheet(V, partition, runtime)
    with torch.no_grad():
        for rows, truth in zip(hidden.split(150), target.split(150), strict=True):
            sheet.add(truth, head(rows, truth, reduction="none"), head.guesses(rows, truth, partition, 2))
        dense = head.log_prob(hidden).exp().double()
    return head, partition, sheet.total(), target.numpy(), dense.numpy()


def test_means(scored):
    _, partition, scores, target, dense = scored
    predicted = dense.argmax(1)
    assert scores.rows == N
    assert scores.loss == pytest.approx(-np.log(dense[np.arange(N), target]).mean(), rel=1e-5)
    assert scores.group_loss + scores.member_loss == pytest.approx(scores.loss)
    assert scores.accuracy == (predicted == target).mean()
    assert scores.mean_class_accuracy == pytest.approx(_balanced(target, predicted))
    assert scores.mean_class_accuracy != pytest.approx(scores.accuracy, abs=0.01)
    assert len(set(scores.group_of)) == partition.num_groups


def _balanced(target, predicted):
    """scikit-learn warns of predicted classes that never occur, and counts none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return balanced_accuracy_score(target, predicted)


def test_bands_hold_a_third_of_the_training_data_each(scored):
    _, _, scores, target, dense = scored
    predicted = dense.argmax(1)
    rare, middle, frequent = scores.bands(COUNTS)
    # Of 294 examples the rarest classes have 10, 24, 100, then come 60 and 100: middles at 84, 164, 244.
    assert (rare.classes, rare.least, rare.most) == (21, 1, 20)
    assert (middle.classes, middle.least, middle.most) == (1, 60, 60)
    assert (frequent.classes, frequent.least, frequent.most) == (1, 100, 100)
    for band, inside in (
        (rare, target < 21),
        (middle, target == 21),
        (frequent, target == 22),
    ):
        assert band.rows == inside.sum()
        assert band.accuracy == pytest.approx((predicted == target)[inside].mean())
        truth = dense[inside, target[inside]]
        assert band.loss == pytest.approx(-np.log(truth).mean(), rel=1e-5)
    assert scores.bands(np.full(V, 7)) == []
    assert scores.bands(np.zeros(V)) == []


def test_groups(scored):
    head, partition, scores, target, dense = scored
    group_of = partition.split(torch.arange(V))[0].numpy()
    mass = np.stack([dense[:, group_of == group].sum(1) for group in range(5)], 1)
    guess = mass.argmax(1) if head.has_groups else group_of[dense.argmax(1)]
    truth = group_of[target]
    assert np.array_equal(scores.confusion, confusion_matrix(truth, guess, labels=range(5)))
    assert scores.group_accuracy == (guess == truth).mean()
    ranked = scores.groups()
    assert sorted(score.loss for score in ranked) == [score.loss for score in ranked]
    assert {score.group for score in ranked} == {g for g in range(5) if (truth == g).sum() * 10 >= N}
    for score in ranked:
        inside = truth == score.group
        assert score.rows == inside.sum()
        assert score.accuracy == pytest.approx((dense.argmax(1) == target)[inside].mean())
        assert score.group_accuracy == pytest.approx((guess == truth)[inside].mean())
    true, predicted, rows = scores.confused_groups()[0]
    wrong = confusion_matrix(truth, guess) * (1 - np.eye(5, dtype=int))
    assert rows == wrong.max() == wrong[true, predicted]
    if head.has_groups:
        edges = np.linspace(0, 1, PROBABILITY_BINS + 1)
        assert np.array_equal(scores.group_probability, np.histogram(mass[np.arange(N), truth], edges)[0])


def test_calibration(scored):
    _, _, scores, target, dense = scored
    confidence, right = dense.max(1), dense.argmax(1) == target
    error = 0.0
    for number, one in enumerate(scores.reliability()):
        inside = (confidence >= number / BINS) & (confidence < (number + 1) / BINS)
        assert (one.rows if one else 0) == inside.sum()
        if one:
            assert one.accuracy == pytest.approx(right[inside].mean())
            assert one.confidence == pytest.approx(confidence[inside].mean(), rel=1e-5)
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert scores.calibration_error == pytest.approx(error, rel=1e-4)


def test_many_groups_share_cells(runtime, monkeypatch):
    monkeypatch.setattr("sqrtvocab.training.scores.MOST_CELLS", 4)
    partition, head = Partition(V, 12), make_head("flat", D, V)
    hidden, target = torch.randn(N, D), torch.randint(V, (N,))
    sheet = ScoreSheet(V, partition, runtime)
    with torch.no_grad():
        sheet.add(target, head(hidden, target, reduction="none"), head.guesses(hidden, target, partition))
    scores = sheet.total()
    groups = (partition.split(classes)[0].numpy() // 3 for classes in (target, head.predict(hidden)))
    assert np.array_equal(scores.confusion, confusion_matrix(*groups, labels=range(4)))
    assert scores.confused_groups() == []  # a cell does not tell which groups


def test_nothing_and_not_a_number(runtime):
    partition, head = Partition(V, 5), make_head("flat", D, V)
    empty = ScoreSheet(V, partition, runtime).total()
    assert empty.rows == 0
    assert np.isnan([empty.loss, empty.accuracy, empty.mean_class_accuracy, empty.calibration_error]).all()
    assert (empty.bands(COUNTS), empty.groups(), empty.confused_groups()) == ([], [], [])
    sheet, target = ScoreSheet(V, partition, runtime), torch.tensor([1])
    hidden = torch.full((1, D), torch.nan)
    with torch.no_grad():
        sheet.add(target, head(hidden, target, reduction="none"), head.guesses(hidden, target, partition))
    assert np.isnan(sheet.total().loss)


def test_the_report_names_groups_and_fits_a_terminal(scored):
    _, partition, scores, *_ = scored
    names = [f"class_{number} with a rather long name" for number in range(V)]
    name = group_by_classes(partition, names, COUNTS)
    group = int(partition.split(torch.tensor(22))[0])
    assert name(group).startswith(f"{names[22]}, ")  # the most frequent class first
    document = score_document(scores, COUNTS, name)
    lines = score_lines(document, "images")
    assert max(map(len, lines)) <= 79
    text = "\n".join(lines)
    for band in scores.bands(COUNTS):
        assert f"{band.name:<20}{band.accuracy:>11.1%}{band.loss:>9.3f}{band.rows:>9,}" in text
    assert f"{scores.calibration_error:.2%}" in text
    best = scores.groups()[0]
    assert document["groups"]["best"][0]["name"] == name(best.group)
    assert f"{best.group:<20}{best.accuracy:>11.1%}" in text
    assert document["groups"]["worst"][0]["group"] == scores.groups()[-1].group
    assert "class\\_" in groups_in_markdown(document, "images")
