"""Small classifiers that tests fit many times."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin


class Centroids(ClassifierMixin, BaseEstimator):
    """Decision values by the nearest mean of a class."""

    def fit(self, X, y):
        self.classes_, of_row = np.unique(y, return_inverse=True)
        sums = np.stack([np.bincount(of_row, column) for column in X.T], axis=1)
        self.means_ = sums / np.bincount(of_row)[:, None]
        return self

    def decision_function(self, X):
        values = -((X[:, None] - self.means_) ** 2).sum(2) / 2
        return values[:, 1] - values[:, 0] if len(self.classes_) == 2 else values

    def predict(self, X):
        return self.classes_[(-((X[:, None] - self.means_) ** 2).sum(2)).argmax(1)]


class OfAppearance(Centroids):
    """Its classes stand in the order in which they appear."""

    def fit(self, X, y):
        super().fit(X, y)
        order = np.argsort([np.flatnonzero(y == label)[0] for label in self.classes_])
        self.classes_, self.means_ = self.classes_[order], self.means_[order]
        return self
