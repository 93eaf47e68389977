"""scikit-learn: any classifier, with prediction sets."""

from evicp.errors import need

need("sklearn", "scikit-learn", "sklearn", "the scikit-learn adapter")

from evicp.sklearn.classifier import ConformalClassifier, logits_of  # noqa: E402 - it imports scikit-learn

__all__ = ["ConformalClassifier", "logits_of"]
