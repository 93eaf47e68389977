"""A real MLflow with a store of its own: what is logged predicts the library's sets, alone and behind a classifier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evicp
from evicp.errors import FileError, InputError, LogitsError, SmallCalibrationWarning

mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: make test-adapters")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*(input example|type hint):UserWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tracking store and a registry in SQLite, with artifacts in a folder."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("sets", artifact_location=(folder / "a").as_uri()))
    yield folder
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def adapter(store: Path) -> Any:
    from evicp import mlflow as adapter

    return adapter


def sets_of(frame: pd.DataFrame) -> list[list[int]]:
    assert [len(labels) for labels in frame["set"]] == frame["size"].tolist()
    return [list(labels) for labels in frame["set"]]


def test_a_logged_calibration_predicts_its_sets(adapter: Any, rows: tuple) -> None:
    calibration = evicp.calibrate(*rows, class_names=list("abcd"))
    logits = rows[0]
    with mlflow.start_run():
        logged = adapter.log_model(calibration, coverage=0.8, registered_model_name="flowers")
    model = mlflow.pyfunc.load_model(logged.model_uri)
    expected = calibration.predict(logits, 0.8)
    found = model.predict(logits)
    assert sets_of(found) == expected.to_lists()
    assert [list(names) for names in found["names"]] == expected.to_lists(names=True)
    assert sets_of(model.predict(logits.astype(np.float32))) == calibration.predict(np.float32(logits), 0.8).to_lists()
    assert sets_of(model.predict(pd.DataFrame(logits, columns=list("abcd")))) == expected.to_lists()
    assert sets_of(model.predict({"logits": logits})) == expected.to_lists()
    asked = {"coverage": 0.5, "allow_empty": False}
    assert sets_of(model.predict(logits, params=asked)) == calibration.predict(logits, **asked).to_lists()
    assert sets_of(model.predict(logits, params=asked)) != expected.to_lists()
    again = adapter.load_model("models:/flowers/1")
    assert again == calibration
    assert logged.metadata["checksum"] == calibration.certificate().checksum
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=logged.model_uri))
    certificate = json.loads(next(folder.rglob("certificate.json")).read_text())
    assert certificate["coverage"] == 0.8
    assert f"evicp=={evicp.__version__}" in (folder / "requirements.txt").read_text().splitlines()


def test_groups_and_what_is_refused(adapter: Any, rows: tuple, tmp_path: Path) -> None:
    groups = np.array(["x", "y"])[rows[1] % 2]
    calibration = evicp.calibrate(*rows, "lac", by=groups)
    adapter.save_model(calibration, tmp_path / "model", 0.8)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    frame = pd.DataFrame({"logits": list(rows[0]), "groups": groups})
    assert sets_of(model.predict(frame)) == calibration.predict(rows[0], 0.8, groups=groups).to_lists()
    with pytest.raises(InputError, match="groups"):
        model.predict(rows[0])
    with pytest.raises(LogitsError, match=r"must have 4 classes, as in the calibration; got 3"):
        model.predict({"logits": rows[0][:, :3], "groups": groups})
    with pytest.raises(InputError, match=r"^logits must be the entry 'logits' of a dict; got a, b"):
        model.predict({"a": rows[0], "b": groups})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file MLmodel"):
        adapter.save_model(calibration, tmp_path / "other", classifier=str(tmp_path / "empty"))
    with pytest.warns(SmallCalibrationWarning):
        adapter.save_model(evicp.calibrate(rows[0][:5], rows[1][:5]), tmp_path / "few")
    next((tmp_path / "model").rglob("calibration.safetensors")).write_bytes(b"broken")
    with pytest.raises(FileError):
        adapter.load_model(str(tmp_path / "model"))


def test_a_classifier_that_is_logged_already_answers_with_sets(adapter: Any, rows: tuple) -> None:
    from sklearn.linear_model import LogisticRegression

    inputs, labels = rows
    model = LogisticRegression().fit(inputs[:30], labels[:30])

    def logits(rows: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(model.predict_proba(rows), 1e-300))

    first = mlflow.sklearn.log_model(
        model, name="classifier", pyfunc_predict_fn="predict_proba", pip_requirements=["scikit-learn==0.0"]
    )
    calibration = evicp.calibrate(logits(inputs[30:60]), labels[30:60], "lac")
    logged = adapter.log_model(calibration, "sets", 0.8, classifier=first.model_uri, output_is="probabilities")
    answer = mlflow.pyfunc.load_model(logged.model_uri).predict(inputs[60:])
    assert sets_of(answer) == calibration.predict(logits(inputs[60:]), 0.8).to_lists()
    assert adapter.load_model(logged.model_uri) == calibration
    with pytest.raises(InputError, match=r"is not a model of evicp\.mlflow: mlflow\.sklearn loads it"):
        adapter.load_model(first.model_uri)
    needs = mlflow.pyfunc.get_model_dependencies(logged.model_uri)
    assert "scikit-learn==0.0" in Path(needs).read_text()
    with pytest.raises(InputError, match=r"^output_is must be 'logits' or 'probabilities'; got 'votes'"):
        adapter.log_model(calibration, classifier=first.model_uri, output_is="votes")


def test_what_is_no_probability_is_refused(adapter: Any, rows: tuple, tmp_path: Path) -> None:
    adapter.save_model(evicp.calibrate(*rows), tmp_path / "model", output_is="probabilities")
    with pytest.raises(InputError, match=r"must give probabilities in \[0, 1\]"):
        mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows[0])


def test_a_conformal_classifier_is_logged_in_the_default_format(adapter: Any, rows: tuple) -> None:
    from sklearn.linear_model import LogisticRegression

    from evicp.sklearn import ConformalClassifier

    io = pytest.importorskip("skops.io")
    model = ConformalClassifier(LogisticRegression(), coverage=0.8, cv=0.5, random_state=0).fit(*rows)
    types = io.get_untrusted_types(data=io.dumps(model))
    assert all(name.startswith("evicp.") for name in types)
    logged = mlflow.sklearn.log_model(model, name="conformal", skops_trusted_types=types)
    again = mlflow.sklearn.load_model(logged.model_uri)
    assert again.predict_set(rows[0]).to_lists() == model.predict_set(rows[0]).to_lists()


def test_a_server_of_mlflow_answers_with_sets(adapter: Any, rows: tuple, tmp_path: Path) -> None:
    calibration = evicp.calibrate(*rows)
    adapter.save_model(calibration, tmp_path / "model", 0.8)
    port = 20000 + os.getpid() % 20000
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(tmp_path / "model"), "-p", str(port)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/own.db"}
    with subprocess.Popen([*command, "--env-manager", "local"], env=environment, start_new_session=True) as server:
        try:
            body = json.dumps({"inputs": {"logits": rows[0].tolist()}, "params": {"coverage": 0.6}}).encode()
            answer = _answer(f"http://127.0.0.1:{port}/invocations", body, server)
        finally:
            os.killpg(server.pid, 15)
    expected = calibration.predict(rows[0], 0.6).to_lists()
    assert [row["set"] for row in answer["predictions"]] == expected


def _answer(address: str, body: bytes, server: subprocess.Popen[bytes]) -> Any:
    """What a server answers once it is there."""
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        assert server.poll() is None
        try:
            with direct.open(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not start")
