"""scikit-learn: any classifier, with prediction sets."""

from evicp.sklearn.classifier import ConformalClassifier, logits_of

__all__ = ["ConformalClassifier", "logits_of"]
