"""The estimated density ratio against scikit-learn's regression, against theory, and by the coverage it restores."""

from __future__ import annotations

import numpy as np
import pytest

import evicp
from evicp import calibrate, estimate_density_ratio
from evicp.calibration.laws import density
from evicp.errors import InputError, InputTypeError, SuspiciousInputWarning


def two_normals(n: int, m: int, moved: float, seed: int = 0, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + moved * np.eye(d)[0]


def test_slopes_are_those_of_a_weighted_logistic_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    old, new = two_normals(300, 150, 1.0)
    x, is_new = np.concatenate([old, new]), np.arange(450) >= 300
    alike = np.where(is_new, 0.5 / 150, 0.5 / 300)  # both kinds count alike
    for penalty, (slopes, intercept) in zip(density._PENALTIES, density._path(x, is_new), strict=True):
        oracle = linear_model.LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10000)
        oracle.fit(x, is_new, sample_weight=alike)
        np.testing.assert_allclose(slopes, oracle.coef_[0], atol=1e-4)
        assert intercept == pytest.approx(oracle.intercept_[0], abs=1e-4)


def test_the_ratio_of_two_normals_is_found():
    ratio = estimate_density_ratio(*two_normals(20000, 10000, 1.0))
    points = np.zeros((3, 3))
    points[:, 0] = [-1.0, 0.5, 2.0]
    np.testing.assert_allclose(np.log(ratio(points)), [-1.5, 0.0, 1.5], atol=0.15)  # x - 1/2
    assert ratio.auc == pytest.approx(0.760, abs=0.01)  # P(N(1, 1) > N(0, 1))
    assert repr(ratio).startswith("DensityRatio(3 features; penalty ")


@pytest.mark.parametrize("unit", [1e-150, 1.0, 1e150])
def test_units_do_not_matter(unit):
    old, new = two_normals(400, 300, 1.0)
    expected = estimate_density_ratio(old, new)(new)
    columns = np.array([unit, 3.0, -0.1])
    old, new = (5 + old) * columns, (5 + new) * columns
    np.testing.assert_allclose(estimate_density_ratio(old, new)(new), expected, rtol=1e-4)


def test_a_constant_feature_says_nothing():
    old, new = two_normals(400, 300, 1.0)
    expected = estimate_density_ratio(old, new)(new)
    with_constant = [np.column_stack([part, np.full(len(part), 0.1)]) for part in (old, new)]
    np.testing.assert_allclose(estimate_density_ratio(*with_constant)(with_constant[1]), expected, rtol=1e-4)


def test_without_a_shift_weights_are_one():
    found = [estimate_density_ratio(*two_normals(300, 300, 0.0, seed, d=20)) for seed in range(5)]
    assert any(ratio.penalty is None for ratio in found)
    for seed, ratio in enumerate(found):
        weights = ratio(two_normals(300, 300, 0.0, seed + 100, d=20)[0])
        assert weights.min() > 0.5
        assert weights.max() < 2.0
        if ratio.penalty is None:
            assert (weights == 1).all()
            assert "no shift was found" in repr(ratio)


def test_weights_stay_within_those_of_the_rows_that_were_fitted():
    old, new = two_normals(500, 500, 1.0)
    ratio = estimate_density_ratio(old, new)
    fitted = ratio(np.concatenate([old, new]))
    far = np.zeros((2, 3))
    far[:, 0] = -1e6, 1e6
    assert ratio(far).tolist() == [fitted.min(), fitted.max()]


def test_rows_with_nothing_in_common_are_warned_of():
    old, new = two_normals(100, 100, 10.0)
    with pytest.warns(SuspiciousInputWarning, match=r"distinguished in 100.0% of pairs"):
        assert estimate_density_ratio(old, new).auc == 1.0


def test_no_weight_is_infinite():
    old, new = two_normals(4000, 4000, 8.0, d=1)
    old[0] = 1000.0
    with pytest.warns(SuspiciousInputWarning, match="distinguished"):
        ratio = estimate_density_ratio(old, new)
    assert ratio.range[1] == 700.0
    assert np.isfinite(ratio(old)).all()


def test_the_order_of_pairs():
    values, is_new = np.array([0.0, 1.0, 2.0, 1.0, 3.0]), np.array([False, False, False, True, True])
    assert density._auc(values, is_new) == pytest.approx((1.5 + 3) / 6)


@pytest.mark.filterwarnings("ignore:the weights leave")
def test_estimated_weights_restore_the_coverage(long_run):
    """Labels are harder to tell where x_0 is larger, and so it is among new rows."""
    rng = np.random.default_rng(3)

    def draw(n: int, hard: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = rng.normal(size=(n, 2)) + np.array([1.5, 0]) * hard
        labels = rng.integers(0, 4, n)
        noise = np.exp(0.6 * x[:, :1]) * rng.normal(size=(n, 4))
        return x, 3 * np.eye(4)[labels] + noise, labels

    plain, weighted = [], []
    for _ in range(40 if long_run else 8):
        ratio = estimate_density_ratio(draw(500, 0)[0], draw(500, 1)[0])
        x, logits, labels = draw(1000, 0)
        new_x, new_logits, new_labels = draw(1000, 1)
        plain.append(calibrate(logits, labels, "lac").predict(new_logits, 0.8).contains(new_labels).mean())
        calibration = calibrate(logits, labels, "lac", weights=ratio(x))
        sets = calibration.predict(new_logits, 0.8, weights=ratio(new_x))
        weighted.append(sets.contains(new_labels).mean())
    assert np.mean(plain) < 0.7  # the control: without weights the guarantee is broken
    # The mean of a few repeats is further away, by as much as estimated weights spread.
    assert np.mean(weighted) == pytest.approx(0.8, abs=0.02 if long_run else 0.05)


def test_a_row_has_the_same_weight_in_any_batch():
    old, new = two_normals(200, 200, 1.0, d=37)
    ratio = estimate_density_ratio(old, new)
    assert ratio(new).tolist() == [ratio(row[None])[0] for row in new]
    assert ratio(new).tolist() == ratio(np.asfortranarray(new)).tolist()  # as frames have them


def test_columns_of_a_frame_may_be_true_or_false():
    pandas = pytest.importorskip("pandas")
    old, new = two_normals(100, 100, 1.0, d=2)
    frames = [pandas.DataFrame({"size": x[:, 0], "urgent": x[:, 1] > 0}) for x in (old, new)]
    arrays = [np.column_stack([x[:, 0], x[:, 1] > 0]) for x in (old, new)]
    np.testing.assert_array_equal(
        estimate_density_ratio(*frames)(frames[1]), estimate_density_ratio(*arrays)(arrays[1])
    )


def test_one_feature_needs_no_second_axis():
    old, new = two_normals(100, 100, 1.0, d=1)
    ratio = estimate_density_ratio(old[:, 0], new[:, 0])
    np.testing.assert_array_equal(ratio(new[:, 0]), estimate_density_ratio(old, new)(new))


def test_the_same_seed_gives_the_same_weights():
    old, new = two_normals(60, 60, 1.0)
    first, again = (estimate_density_ratio(old, new, seed=3) for _ in range(2))
    assert first.auc == again.auc
    assert (first(new) == again(new)).all()


GOOD = np.arange(40.0).reshape(20, 2)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (GOOD[:9], GOOD, InputError, "needs 10 old and 10 new rows; got 9 and 20"),
        (GOOD, GOOD[:, :1], InputError, r"new_features must have shape \(rows, 2\); got \(20, 1\)"),
        (GOOD, GOOD[:, 0], InputError, r"new_features must have shape \(rows, 2\); got \(20,\)"),
        (np.zeros((20, 0)), GOOD, InputError, r"features must have shape \(rows, features\); got \(20, 0\)"),
        (np.zeros((20, 2, 2)), GOOD, InputError, r"features must have shape \(rows, features\); got \(20, 2, 2\)"),
        (np.where(GOOD == 7, np.nan, GOOD), GOOD, InputError, "features must be finite; got nan at row 3, column 1"),
        (GOOD.astype(str), GOOD, InputTypeError, "features must be real numbers; got dtype <U"),
        (GOOD * 1j, GOOD, InputTypeError, "features must be real numbers; got dtype complex128"),
    ],
)
def test_features_that_cannot_be_used(old, new, error, message):
    with pytest.raises(error, match=message):
        estimate_density_ratio(old, new)


def test_new_rows_must_have_the_fitted_features():
    ratio = evicp.estimate_density_ratio(*two_normals(50, 50, 1.0))
    with pytest.raises(InputError, match=r"features must have shape \(rows, 3\); got \(5, 2\)"):
        ratio(np.zeros((5, 2)))


def test_the_columns_of_a_frame_are_those_that_were_fitted():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    old = pd.DataFrame(rng.normal(size=(300, 2)), columns=["x", "y"])
    new = pd.DataFrame(rng.normal((1, 0), size=(300, 2)), columns=["x", "y"])
    ratio = evicp.estimate_density_ratio(old, new)
    assert ratio.columns == ("x", "y")
    np.testing.assert_array_equal(ratio(old), ratio(old.to_numpy()))
    for wrong in (old[["y", "x"]], old.rename(columns={"y": "z"})):
        with pytest.raises(evicp.EvicpError, match=r"must have the columns x, y, in this order; got "):
            ratio(wrong)
        with pytest.raises(evicp.EvicpError, match="new_features must have the columns x, y"):
            evicp.estimate_density_ratio(old, wrong)
    assert evicp.estimate_density_ratio(old.to_numpy(), new).columns is None
    assert evicp.estimate_density_ratio(old, old.sample(frac=1, random_state=0)).columns == ("x", "y")  # no shift
