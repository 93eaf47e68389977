"""MLflow: log a calibration as a model whose predictions are sets, alone or behind a classifier that is logged already.

The model is a pyfunc, so everything that serves one serves it. Its files are the calibration, the certificate, and a
copy of the classifier where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from evicp import __version__
from evicp.calibration.calibration import Calibration
from evicp.errors import InputError, need
from evicp.evaluation.result import Evaluation
from evicp.input.validate import SMALLEST_PROBABILITY
from evicp.io.artifact import load, save
from evicp.io.atomic import write_whole
from evicp.io.paths import as_path, read_text
from evicp.types import Coverage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["load_model", "log_model", "save_model"]

_CALIBRATION, _CERTIFICATE, _CLASSIFIER = "calibration.safetensors", "certificate.json", "classifier"


def log_model(
    calibration: Calibration,
    name: str = "sets",
    coverage: Coverage = 0.9,
    *,
    classifier: str | None = None,
    output_is: str = "logits",
    evaluation: Evaluation | None = None,
    **options: Any,
) -> Any:
    """Log a calibration as an MLflow model whose `predict` returns sets; returns MLflow's `ModelInfo`.

    `predict` takes logits, (n, K), as an array, a data frame with a column for each class, or a data frame or dict with
    the entry `logits` (and `groups`, for a calibration by="group"); with a classifier, what that takes. It returns a
    data frame with the columns `set`, `size`, and `names` where there are class names. `params={"coverage": 0.95}` asks
    for another coverage, `{"allow_empty": False}` for sets that are never empty.

    Parameters
    ----------
    name : of the model
    coverage : the default of `predict`, and of the certificate in certificate.json
    classifier : the address of a logged model, "models:/..." or "runs:/...", which is copied
    output_is : what that model's pyfunc gives: "logits", or "probabilities", of which logarithms are taken
    evaluation : for the certificate, as for `Calibration.certificate`
    options : for `mlflow.pyfunc.log_model`: registered_model_name, input_example, signature, pip_requirements, ...
    """
    with _prepared(calibration, coverage, classifier, output_is, evaluation, options) as how:
        return _mlflow().pyfunc.log_model(name=name, **how)


def save_model(
    calibration: Calibration,
    path: str | PathLike[str],
    coverage: Coverage = 0.9,
    *,
    classifier: str | None = None,
    output_is: str = "logits",
    evaluation: Evaluation | None = None,
    **options: Any,
) -> None:
    """Write the model that `log_model` logs into a separate folder.

    Parameters
    ----------
    path : of the folder, which must not exist
    coverage, classifier, output_is, evaluation, options : as for `log_model`
    """
    with _prepared(calibration, coverage, classifier, output_is, evaluation, options) as how:
        _mlflow().pyfunc.save_model(path=str(as_path(path)), **how)


def load_model(model_uri: str) -> Calibration:
    """The calibration of a logged model, for what a pyfunc cannot do: certificates, p-values, monitors.

    Parameters
    ----------
    model_uri : "models:/...", "runs:/..." or a folder
    """
    mlflow = _mlflow()
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=model_uri))
    about = mlflow.models.Model.load(str(folder)).flavors["python_function"]
    if about["loader_module"] != __name__:
        raise InputError(f"{model_uri} is not a model of evicp.mlflow: {about['loader_module']} loads it.")
    return load(folder / about["data"] / _CALIBRATION)


@contextmanager
def _prepared(
    calibration: Calibration,
    coverage: Coverage,
    classifier: str | None,
    output_is: str,
    evaluation: Evaluation | None,
    options: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """What `mlflow.pyfunc` needs to write the model: files, requirements, and what `predict` may be asked."""
    if output_is not in ("logits", "probabilities"):
        raise InputError(f"output_is must be 'logits' or 'probabilities'; got {output_is!r}.")
    mlflow = _mlflow()
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ParamSchema, ParamSpec

    certificate = calibration.certificate(coverage, evaluation)
    requirements = [f"evicp=={__version__}", "pandas"]
    asked = ParamSpec("coverage", "double", certificate.coverage), ParamSpec("allow_empty", "boolean", True)
    with TemporaryDirectory() as folder:
        save(calibration, Path(folder, _CALIBRATION))
        write_whole(Path(folder, _CERTIFICATE), certificate.to_json())
        if classifier is not None:
            requirements += _copied(mlflow, classifier, Path(folder, _CLASSIFIER))
        yield {
            "loader_module": __name__,
            "data_path": folder,
            "model_config": {"output_is": output_is},
            "pip_requirements": requirements,
            "signature": ModelSignature(params=ParamSchema(list(asked))),
            "metadata": {"coverage": certificate.coverage, "n": certificate.n, "checksum": certificate.checksum},
            **options,
        }


def _copied(mlflow: Any, classifier: str, target: Path) -> list[str]:
    """Copy a logged model into a folder; returns what it needs."""
    target.mkdir()
    copy = Path(mlflow.artifacts.download_artifacts(artifact_uri=classifier, dst_path=str(target)))
    if not (copy / "MLmodel").is_file():
        raise InputError(f"classifier must be the address of a logged model; {classifier} has no file MLmodel.")
    own = copy / "requirements.txt"
    return read_text(own).splitlines() if own.is_file() else []


class _Sets:
    """What MLflow calls a model: `predict` of one input."""

    def __init__(self, folder: Path, output_is: str) -> None:
        self._calibration, self._output_is = load(folder / _CALIBRATION), output_is
        classifiers = sorted((folder / _CLASSIFIER).rglob("MLmodel"), key=lambda path: len(path.parts))
        self._classifier = _mlflow().pyfunc.load_model(str(classifiers[0].parent)) if classifiers else None

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """The sets of some rows, as a data frame."""
        found = model_input if self._classifier is None else self._classifier.predict(model_input)
        logits, groups = _logits_of(found)
        if self._output_is == "probabilities":
            logits = _logarithms(logits)
        sets = self._calibration.predict(logits, groups=groups, **(params or {}))
        return sets.to_pandas().rename(columns={"labels": "set"})


def _load_pyfunc(data_path: str, model_config: dict[str, str]) -> _Sets:
    """MLflow finds this by its name."""
    return _Sets(Path(data_path), model_config["output_is"])


def _logarithms(probabilities: Any) -> Any:
    """Of probabilities of 0 the logarithm of a tiny number, as `evicp.sklearn` has it."""
    values = np.asarray(probabilities, np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        raise InputError("the classifier must give probabilities in [0, 1]. Log the model with output_is='logits'.")
    return np.log(np.maximum(values, SMALLEST_PROBABILITY))


def _logits_of(found: Any) -> tuple[Any, Any]:
    """Logits, and groups where there are any, in what MLflow hands over or a classifier returns."""
    is_frame = hasattr(found, "columns")
    if not (is_frame and "logits" in found.columns) and not isinstance(found, Mapping):
        return found, None
    if "logits" not in found and len(found) != 1:
        raise InputError(f"logits must be the entry 'logits' of a dict; got {', '.join(map(str, found))}.")
    logits = found["logits"] if "logits" in found else next(iter(found.values()))
    groups = found.get("groups")
    return np.stack([np.asarray(row) for row in logits]), groups


def _mlflow() -> Any:
    need("mlflow.pyfunc", "mlflow", "mlflow", "the MLflow adapter")
    return need("mlflow", "mlflow", "mlflow", "the MLflow adapter")
