"""The command line, as people and scripts meet it: real processes, exit codes, one-line errors, JSON by schema."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib.util
import inspect
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.console import Console

import evicp
from commands import ENVIRONMENT, RUN, Run, evicp_process
from evicp import kernels
from evicp.cli import app, inputs, outputs, printing
from evicp.cli.commands import COMMANDS
from evicp.errors import EvicpError, InputError
from evicp.io.files import read_sets, write_sets
from evicp.io.json_text import plain
from evicp.io.rows import located
from evicp.progress import progress
from places import SCHEMAS

#: Names that would do harm if anything took them for markup, paths or code.
HOSTILE = ("<script>alert(1)</script>", "../../outside", "quote\"'`", "semi;colon, comma", "[bold]markup[/bold]")
K = len(HOSTILE)


def importable(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


HAS_ONNX, HAS_TORCH = importable("onnx"), importable("torch", "PIL")

TINY_NETWORK = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 2))
"""


def write_tiny_onnx(path: Path) -> None:
    """A classifier whose logits are its inputs."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", K]) for name in ("x", "logits"))
    weights = numpy_helper.from_array(np.eye(K, dtype=np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["logits"])], "tiny", [inputs], [outputs], [weights]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_pictures(folder: Path) -> None:
    """Four pictures of noise in the folders of two classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(4):
        place = folder / ("zero" if number < 2 else "one")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(place / f"{number}.png")


def write_groups(folder: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """Calibrations by group and with groups that overlap, and the groups of all rows and of those after it."""
    groups = np.arange(600) % 3
    evicp.calibrate(logits[:300], labels[:300], by=groups[:300]).save(folder / "group.safetensors")
    np.save(folder / "groups.npy", groups)
    np.save(folder / "floats.npy", groups / 2)
    np.save(folder / "test-groups.npy", groups[300:])
    members = np.random.default_rng(1).random((600, 2)) < 0.5
    evicp.calibrate(logits[:300], labels[:300], by=members[:300]).save(folder / "overlapping.safetensors")
    np.save(folder / "members.npy", members)
    np.save(folder / "test-members.npy", members[300:])


def write_rules(folder: Path, logits: np.ndarray, labels: np.ndarray) -> None:
    """A rule of each kind."""
    control = evicp.control_risk(logits, labels, risk=0.1, class_names=HOSTILE)
    control.save(folder / "rule.safetensors")
    (folder / "rule-certificate.json").write_text(control.certificate().to_json())
    evicp.selective(logits, labels, error=0.2, class_names=HOSTILE).save(folder / "selective.safetensors")
    truth = np.eye(K, dtype=int)[labels]
    evicp.multilabel(logits, truth, class_names=HOSTILE).save(folder / "several.safetensors")
    np.save(folder / "truth.npy", truth)
    lists = [[int(label)] for label in labels]
    (folder / "truth.json").write_text(json.dumps({"ids": [], "truth": lists}))
    (folder / "truth.jsonl").write_text("".join(f'{{"labels": {row}}}\n' for row in lists))
    (folder / "no-truth.json").write_text('{"ids": []}')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind, made with the library, and files that are wrong in every way."""
    here = tmp_path_factory.mktemp("cli") / "work"
    here.mkdir()
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 600)
    logits = (rng.normal(size=(600, K)) + 2.5 * np.eye(K)[labels]).astype(np.float32)
    np.savez(here / "val.npz", logits=logits, labels=labels, class_names=np.array(HOSTILE))
    np.savez(here / "unlabelled.npz", logits=logits[:50])
    np.savez(here / "nan.npz", logits=np.where(np.arange(K) == 1, np.nan, logits), labels=labels)
    np.savez(here / "one-based.npz", logits=logits, labels=labels + 1)
    np.savez(here / "narrow.npz", logits=logits[:, :3], labels=labels % 3)
    np.savez(here / "many.npz", logits=np.tile(logits, (2, 1)), labels=np.tile(labels, 2))
    np.savez(here / "deep.npz", logits=logits[..., None], labels=labels)
    np.savez(here / "flat.npz", logits=logits[0], labels=labels[:K])
    np.savez(here / "alone.npz", logits=logits[:1], labels=np.array(0))
    np.save(here / "labels.npy", labels)
    np.save(here / "short.npy", labels[:10])
    (here / "turned.txt").write_text("\n".join(HOSTILE[::-1]), encoding="utf-8")
    (here / "other.json").write_text('{"coverage": 0.9}')
    (here / "names.txt").write_text("\n".join(HOSTILE), encoding="utf-8")
    (here / "not.npz").write_bytes(b"this is no archive")
    (here / "taken.txt").write_text("mine")
    calibration = evicp.calibrate(logits[:300], labels[:300], class_names=HOSTILE)
    calibration.save(here / "cal.safetensors")
    (here / "certificate.json").write_text(calibration.certificate(0.9).to_json())
    (here / "nothing.json").write_text("{}")
    dataclasses.replace(calibration, folds=5).save(here / "folds.safetensors")
    evicp.calibrate(logits[:300], labels[:300], "lac").save(here / "lac.safetensors")
    by_class = evicp.calibrate(logits[:300], labels[:300], by="class", class_names=HOSTILE)
    by_class.save(here / "class.safetensors")
    write_groups(here, logits, labels)
    write_sets(calibration.predict(logits[300:], 0.9), here / "sets.parquet")
    write_sets(by_class.predict(logits[300:], 0.9), here / "class-sets.npz")
    weighted = evicp.calibrate(logits[:300], labels[:300], weights=np.ones(300))
    write_sets(weighted.predict(logits[300:], 0.9, weights=np.ones(300)), here / "weighted.npz")
    write_sets(evicp.Base().predict(logits[300:], 0.9), here / "base.npz")
    np.savez(here / "test.npz", logits=logits[300:], labels=labels[300:])
    np.save(here / "test-labels.npy", labels[300:])
    np.save(here / "costs.npy", np.arange(1.0, K + 1))
    np.save(here / "deep-costs.npy", np.ones((K, K, K)))
    write_rules(here, logits[:300], labels[:300])
    (here / "tiny_network.py").write_text(TINY_NETWORK)
    (here / "two.txt").write_text("zero\none\n")
    if HAS_ONNX:
        write_tiny_onnx(here / "tiny.onnx")
    if HAS_TORCH:
        write_pictures(here / "pictures")
    for name in ("taken.safetensors", "taken.html", "taken.csv", "taken.json"):
        (here / name).write_text("mine")
    return here


#: Calls that must succeed.
GOOD: dict[str, list[str]] = {
    "calibrate": ["calibrate", "val.npz", "-o", "made.safetensors"],
    "calibrate json": ["calibrate", "val.npz", "-o", "made2.safetensors", "--json", "-s", "raps(lam=0.5, k_reg=2)"],
    "predict": ["predict", "cal.safetensors", "unlabelled.npz"],
    "predict json": ["predict", "cal.safetensors", "unlabelled.npz", "--json"],
    "predict file json": ["predict", "cal.safetensors", "unlabelled.npz", "-o", "made.csv", "--json"],
    "predict stream": ["predict", "cal.safetensors", "unlabelled.npz", "-o", "-", "-c", "0.5"],
    "evaluate": ["evaluate", "cal.safetensors", "test.npz", "--check"],
    "evaluate pac": ["evaluate", "cal.safetensors", "test.npz", "--confidence", "0.9", "-c", "0.8", "--json"],
    "evaluate class pac": ["evaluate", "class.safetensors", "test.npz", "--confidence", "0.9", "-c", "0.8", "--json"],
    "evaluate filled": ["evaluate", "cal.safetensors", "test.npz", "-c", "0.5", "--no-empty", "--json"],
    "evaluate json": ["evaluate", "sets.parquet", "test.npz", "--json", "-o", "made-evaluation.html"],
    "evaluate folds": ["evaluate", "folds.safetensors", "test.npz", "--json"],
    "evaluate labels": ["evaluate", "base.npz", "test-labels.npy", "--json"],
    "compare": ["compare", "val.npz", "--trials", "2", "-o", "made-comparison.csv"],
    "compare json": [
        "compare",
        "val.npz",
        "--trials",
        "2",
        "--temperature",
        "split",
        "-s",
        "ecp",
        "-s",
        "lac",
        "--json",
    ],
    "compare count": ["compare", "val.npz", "--trials", "1", "--calibration", "200", "-s", "ecp", "--json"],
    "compare once": ["compare", "val.npz", "--trials", "1", "-s", "ecp"],
    "leaderboard": [
        "leaderboard",
        "a=val.npz",
        "test.npz",
        *["-c", "0.8", "-n", "2", "-s", "ecp", "-s", "lac", "-o", "made-board.html"],
    ],
    "leaderboard json": [
        "leaderboard",
        "val.npz",
        *["-c", "0.8", "-c", "0.7", "-n", "2", "-s", "lac", "-s", "topk", "--json", "-o", "made-board.csv"],
    ],
    "report count": ["report", "val.npz", "-o", "made-rows.html", "-s", "ecp", "--calibration", "200", "--json"],
    "report": ["report", "val.npz", "-o", "made.html", "-s", "ecp", "--title", "<script>alert(2)</script>"],
    "report json": ["report", "test.npz", "--load", "cal.safetensors", "-o", "made2.html", "--json"],
    "by class": ["calibrate", "val.npz", "-o", "made-by-class.safetensors", "--by", "class", "--json"],
    "by group": ["calibrate", "val.npz", "-o", "made-by-group.safetensors", "--by", "group", "--groups", "groups.npy"],
    "by overlapping": [
        "calibrate",
        "val.npz",
        *["-o", "made-overlapping.safetensors", "--by", "overlapping", "--groups", "members.npy", "--json"],
    ],
    "predict overlapping": ["predict", "overlapping.safetensors", "val.npz", "--groups", "members.npy", "--json"],
    "evaluate overlapping": [
        "evaluate",
        "overlapping.safetensors",
        "test.npz",
        *["--groups", "test-members.npy", "--check", "--json"],
    ],
    "predict group": ["predict", "group.safetensors", "val.npz", "--groups", "groups.npy", "--json", "-c", "0.8"],
    "predict smoothed": ["predict", "cal.safetensors", "unlabelled.npz", "--smoothed", "--json"],
    "predict pac": ["predict", "cal.safetensors", "unlabelled.npz", "--confidence", "0.95", "--json"],
    "evaluate class json": ["evaluate", "class.safetensors", "test.npz", "--json"],
    "evaluate group json": ["evaluate", "group.safetensors", "test.npz", "--groups", "test-groups.npy", "--json"],
    "report near": ["report", "test.npz", "--load", "cal.safetensors", "-o", "made-near.html", "-c", "0.9004"],
    "report class": ["report", "test.npz", "--load", "class.safetensors", "-o", "made-class.html"],
    "control": ["control", "val.npz", "--risk", "0.1", "-o", "made-rule.safetensors"],
    "control json": [
        "control",
        "val.npz",
        *["--risk", "1.5", "--costs", "costs.npy", "--confidence", "0.9", "-o", "made-rule2.safetensors", "--json"],
    ],
    "selective": ["selective", "val.npz", "--error", "0.2", "--doubt", "margin", "-o", "made-rule3.safetensors"],
    "selective json": [
        "selective",
        "val.npz",
        *["--error", "0.3", "--by", "group", "--groups", "groups.npy", "-o", "made-rule4.safetensors", "--json"],
    ],
    "multilabel": ["multilabel", "test.npz", "-t", "truth.npy", "--missed", "0.4", "-o", "made-rule5.safetensors"],
    "multilabel json": [
        "multilabel",
        "test.npz",
        *["--truth", "truth.npy", "--missed", "0.9", "--confidence", "0.8", "--precision", "0.1"],
        *["-o", "made-rule6.safetensors", "--json"],
    ],
    "apply several json": ["apply", "several.safetensors", "test.npz", "--truth", "truth.npy", "--json"],
    "multilabel lists": ["multilabel", "test.npz", "-t", "truth.jsonl", "-o", "made-rule7.safetensors"],
    "apply several": ["apply", "several.safetensors", "test.npz", "-t", "truth.json", "--report", "made-page1.html"],
    "apply selective page": ["apply", "selective.safetensors", "test.npz", "--report", "made-page2.html", "--json"],
    "apply page": ["apply", "rule.safetensors", "test.npz", "--report", "made-page3.html", "--title", "<b>x"],
    "apply selective": ["apply", "selective.safetensors", "unlabelled.npz"],
    "apply selective json": ["apply", "selective.safetensors", "test.npz", "--json", "-o", "made-answers.parquet"],
    "apply": ["apply", "rule.safetensors", "unlabelled.npz", "-o", "made-applied.csv"],
    "apply json": ["apply", "rule.safetensors", "test.npz", "--json"],
    "plan": ["plan", "--coverage", "0.8", "--tolerance", "0.05"],
    "plan json": ["plan", "-c", "0.8", "-t", "0.05", "--json"],
    "explain": ["explain", "cal.safetensors", "unlabelled.npz", "--row", "7"],
    "explain json": ["explain", "cal.safetensors", "unlabelled.npz", "--row", "7", "--json", "--top", "3"],
    "explain class": ["explain", "class.safetensors", "unlabelled.npz", "--row", "7"],
    "explain lac json": ["explain", "lac.safetensors", "unlabelled.npz", "--row", "7", "--json"],
    "explain by group": [
        "explain",
        "group.safetensors",
        "test.npz",
        "--row",
        "7",
        "--groups",
        "test-groups.npy",
        "--json",
    ],
    "explain class json": ["explain", "class.safetensors", "unlabelled.npz", "--row", "7", "--json"],
    "demo json": ["demo", "--trials", "2", "--json"],
    "tune": ["tune", "val.npz", "--score", "raps", "--grid", "lam=0.01,0.1", "--json"],
    "tune text": ["tune", "val.npz", "--score", "lac"],
    "monitor": ["monitor", "cal.safetensors", "test.npz"],
    "monitor json": ["monitor", "cal.safetensors", "test.npz", "--state", "made-state.json", "--json"],
    "show": ["show", "cal.safetensors"],
    "show rule": ["show", "selective.safetensors"],
    "show rule json": ["show", "several.safetensors", "--json"],
    "show json": ["show", "class.safetensors", "-c", "0.8", "--json"],
    "verify": ["verify", "cal.safetensors", "certificate.json"],
    "verify rule": ["verify", "rule.safetensors", "rule-certificate.json", "--json"],
    "verify json": ["verify", "cal.safetensors", "certificate.json", "--json"],
    "check": ["check", "cal.safetensors", "unlabelled.npz"],
    "check json": ["check", "cal.safetensors", "test.npz", "--reference", "val.npz", "--json"],
    "check logits": ["check", "class.safetensors", "test.npz", "--no-labels", "--error", "0.001"],
    "bench": ["bench", "--rows", "200", "--classes", "10", "--rounds", "1", "--json"],
    "reproduce": ["reproduce", "val=many.npz", "--trials", "1", "--no-figures", "-o", "reproduction", "--json"],
    "force": ["predict", "cal.safetensors", "unlabelled.npz", "-o", "taken.csv", "--force"],
    "help": ["--help"],
    "version": ["--version"],
}

if HAS_ONNX:
    GOOD["export"] = ["export", "tiny.onnx", "cal.safetensors", "-o", "made.onnx", "--confidence", "0.9", "--json"]
if HAS_TORCH:
    paper = ["--transform", "paper", "--class-names", "two.txt", "--json"]
    GOOD["extract"] = ["extract", "tiny_network:build", "pictures", "-o", "made-extract.npz", *paper]

TURNED = "has the names of val.npz in another order: class 0 is"
IS_INPUT = "it is an input, or part of one"

#: Calls that must fail with exit code 2 and one line that contains this.
BAD: dict[str, tuple[list[str], str]] = {
    "calibrate missing": (["calibrate", "nowhere.npz", "-o", "x.safetensors"], "nowhere.npz: no such file"),
    "calibrate nan": (["calibrate", "nan.npz", "-o", "x.safetensors"], "got NaN at row 0, class 1"),
    "calibrate one-based": (["calibrate", "one-based.npz", "-o", "x.safetensors"], "one-based labels?"),
    "calibrate no labels": (["calibrate", "unlabelled.npz", "-o", "x.safetensors"], "has no labels"),
    "calibrate score": (["calibrate", "val.npz", "-o", "x.safetensors", "-s", "nope"], "unknown score 'nope'"),
    "calibrate auto": (["calibrate", "val.npz", "-o", "x.safetensors", "-s", "auto"], "run evicp tune on other rows"),
    "report auto": (["report", "val.npz", "-o", "x.html", "-s", "auto"], "run evicp tune on other rows"),
    "calibrate parameter": (["calibrate", "val.npz", "-o", "x.safetensors", "-s", "lac(lam=1)"], "no parameter lam"),
    "calibrate taken": (["calibrate", "val.npz", "-o", "taken.safetensors"], "exists. Use --force"),
    "calibrate suffix": (["calibrate", "val.npz", "-o", "x.pkl"], "unknown suffix '.pkl'"),
    "calibrate by": (["calibrate", "val.npz", "-o", "x.safetensors", "--by", "shape"], "by must be one of class"),
    "calibrate groups": (["calibrate", "val.npz", "-o", "x.safetensors", "--by", "group"], "belong together"),
    "predict no members": (
        ["predict", "overlapping.safetensors", "unlabelled.npz"],
        "is by overlapping: give the group of each row",
    ),
    "predict one group": (
        ["predict", "overlapping.safetensors", "val.npz", "--groups", "groups.npy"],
        "groups must have shape",
    ),
    "predict no groups": (["predict", "group.safetensors", "unlabelled.npz"], "each row with --groups FILE"),
    "evaluate no groups": (["evaluate", "group.safetensors", "test.npz"], "each row with --groups FILE"),
    "report no groups": (
        ["report", "test.npz", "--load", "group.safetensors", "-o", "x.html"],
        "each row with --groups FILE",
    ),
    "predict text groups": (
        ["predict", "group.safetensors", "val.npz", "--groups", "names.txt"],
        "cannot read groups from names.txt: unknown suffix '.txt'; known are .npy",
    ),
    "predict float groups": (
        ["predict", "group.safetensors", "val.npz", "--groups", "floats.npy"],
        "groups as whole numbers or strings; got dtype float64",
    ),
    "predict swapped": (["predict", "val.npz", "cal.safetensors"], "val.npz is not a calibration. CALIBRATION"),
    "predict short groups": (
        ["predict", "group.safetensors", "unlabelled.npz", "--groups", "groups.npy"],
        "for each of 50 rows; got shape (600,)",
    ),
    "predict coverage": (["predict", "cal.safetensors", "unlabelled.npz", "-c", "90"], "Did you mean 0.9?"),
    "predict per cent": (["predict", "cal.safetensors", "unlabelled.npz", "-c", "90%"], "'90%'. Did you mean 0.9? Try"),
    "plan words": (["plan", "-c", "most"], "between 0 and 1; got 'most'. Write it as 0.9."),
    "predict classes": (["predict", "cal.safetensors", "narrow.npz"], "must have 5 classes"),
    "predict not calibration": (["predict", "not.npz", "unlabelled.npz"], "not a calibration"),
    "predict taken": (["predict", "cal.safetensors", "unlabelled.npz", "-o", "taken.csv"], "exists. Use --force"),
    "predict folder": (
        ["predict", "cal.safetensors", "unlabelled.npz", "-o", "no/such.csv"],
        "no directory no. Create it first.",
    ),
    "evaluate no sets": (
        ["evaluate", "val.npz", "test.npz"],
        "val.npz: it contains logits, not sets. Give sets, or the",
    ),
    "evaluate swapped": (["evaluate", "val.npz", "cal.safetensors"], "cal.safetensors is a calibration, not logits"),
    "evaluate sets coverage": (["evaluate", "sets.parquet", "test.npz", "-c", "0.8"], "are for a calibration"),
    "predict suffix": (["predict", "cal.safetensors", "names.txt"], ".csv, .tsv, .pt, .pth."),
    "predict engine": (["predict", "cal.safetensors", "unlabelled.npz", "--engine", "spark"], "got 'spark'"),
    "predict address": (["predict", "cal.safetensors", "unlabelled.npz", "--address", "x"], "is for --engine ray"),
    "predict json stream": (["predict", "cal.safetensors", "unlabelled.npz", "-o", "-", "--json"], "use one of them"),
    "predict onto logits": (["predict", "cal.safetensors", "val.npz", "-o", "val.npz", "-f"], IS_INPUT),
    "predict onto shard": (["predict", "cal.safetensors", ".", "-o", "test.npz", "-f"], IS_INPUT),
    "calibrate onto": (["calibrate", "lac.safetensors", "-o", "../work/lac.safetensors", "-f"], IS_INPUT),
    "evaluate onto": (["evaluate", "sets.parquet", "test.npz", "-o", "taken.json", "-f", "-l", "taken.json"], IS_INPUT),
    "compare onto": (["compare", "val.npz", "-o", "taken.json", "-f", "--class-names", "taken.json"], IS_INPUT),
    "report onto": (["report", "val.npz", "-o", "taken.html", "-f", "--class-names", "taken.html"], IS_INPUT),
    "evaluate length": (["evaluate", "sets.parquet", "test.npz", "--labels", "short.npy"], "10 labels for 300 rows"),
    "evaluate labels only": (["evaluate", "cal.safetensors", "test-labels.npy"], "needs logits"),
    "evaluate sets pac": (["evaluate", "sets.parquet", "test.npz", "--confidence", "0.9"], "are for a calibration"),
    "evaluate check class": (["evaluate", "class-sets.npz", "test.npz", "--check"], "Pass the calibration instead"),
    "evaluate check weights": (["evaluate", "weighted.npz", "test.npz", "--check"], "check in Python if rows have"),
    "evaluate check base": (["evaluate", "base.npz", "test.npz", "--check"], "there is none for base"),
    "evaluate check folds": (["evaluate", "folds.safetensors", "test.npz", "--check"], "rows were scored in folds"),
    "monitor folds": (["monitor", "folds.safetensors", "test.npz"], "a monitor needs the distribution of coverage"),
    "monitor other state": (
        ["monitor", "cal.safetensors", "test.npz", "--state", "other.json"],
        "cannot read other.json: this",
    ),
    "calibrate nothing": (["calibrate", "", "-o", "x.safetensors"], "a path must not be empty"),
    "calibrate one label": (["calibrate", "alone.npz", "-o", "x.safetensors"], "got a single number"),
    "calibrate lam twice": (["calibrate", "val.npz", "-o", "x.safetensors", "-s", "raps(lam=1,lam=2)"], "given twice"),
    "calibrate names": (["calibrate", "val.npz", "-o", "x.safetensors", "--class-names", "turned.txt"], TURNED),
    "compare names": (["compare", "val.npz", "--class-names", "turned.txt"], TURNED),
    "report turned": (["report", "val.npz", "-o", "x.html", "--class-names", "turned.txt"], TURNED),
    "report vain groups": (
        ["report", "test.npz", "--load", "cal.safetensors", "-o", "x.html", "--groups", "test-groups.npy"],
        "none of those given with --load is",
    ),
    "compare deep": (["compare", "deep.npz"], "got 3 dimension"),
    "tune flat": (["tune", "flat.npz"], "got 1 dimension"),
    "reproduce flat": (["reproduce", "val=flat.npz", "-o", "x", "--no-figures"], "got 1 dimension"),
    "tune grid twice": (["tune", "val.npz", "-s", "raps", "--grid", "lam=1", "--grid", "lam=2"], "given twice"),
    "leaderboard labels": (["leaderboard", "unlabelled.npz"], "has no labels"),
    "leaderboard missing": (["leaderboard", "a=nowhere.npz"], "nowhere.npz: no such file"),
    "leaderboard names": (["leaderboard", "val.npz", "val=test.npz"], "two files are called val; give them names"),
    "leaderboard suffix": (["leaderboard", "val.npz", "-o", "x.pkl"], "unknown suffix '.pkl'"),
    "leaderboard onto": (["leaderboard", "a=val.npz", "b=taken.json", "-o", "taken.json", "-f"], IS_INPUT),
    "leaderboard trials": (["leaderboard", "val.npz", "-n", "1"], "--trials"),
    "leaderboard score": (["leaderboard", "val.npz", "-s", "base"], "base"),
    "compare score twice": (["compare", "val.npz", "-s", "ecp", "-s", "ecp"], "got ecp twice"),
    "compare temperature": (["compare", "val.npz", "--temperature", "hot"], "got 'hot'"),
    "compare page coverage": (["compare", "nowhere.npz", "-c", "0.3", "-o", "x.html"], "from 0.5 to 0.999; got 0.3"),
    "compare auto page": (["compare", "val.npz", "-s", "auto", "-o", "x.html"], "evicp tune"),
    "tune grid": (["tune", "val.npz", "--score", "raps", "--grid", "lam"], "cannot read the grid"),
    "tune metric": (["tune", "val.npz", "--by", "beauty"], "beauty"),
    "tune labels": (["tune", "unlabelled.npz"], "has no labels"),
    "compare not npz": (["compare", "not.npz"], "cannot read not.npz"),
    "compare trials": (["compare", "val.npz", "--trials", "0"], "--trials"),
    "compare calibration": (["compare", "val.npz", "--calibration", "most"], "a number of rows; got 'most'"),
    "compare rows": (["compare", "val.npz", "--calibration", "600"], "a number of rows below 600; got 600"),
    "report rows": (["report", "val.npz", "-o", "x.html", "--calibration", "600"], "below 600; got 600"),
    "report load score": (["report", "test.npz", "--load", "cal.safetensors", "-o", "x.html", "-s", "lac"], "--score"),
    "report load seed": (["report", "test.npz", "--load", "cal.safetensors", "-o", "x.html", "--seed", "0"], "--seed"),
    "report groups": (["report", "val.npz", "-o", "x.html", "--groups", "groups.npy"], "give one with --load"),
    "report taken": (["report", "val.npz", "-o", "taken.html"], "exists. Use --force"),
    "report names": (["report", "test.npz", "-o", "x.html", "--class-names", "taken.txt"], "got 1 names for 5 classes"),
    "report coverage": (["report", "val.npz", "-o", "x.html", "--coverage", "0.3"], "from 0.5 to 0.999"),
    "report holdout": (["report", "val.npz", "-o", "x.html", "--temperature", "holdout"], "scores with a guarantee"),
    "control risk": (["control", "val.npz", "--risk", "2", "-o", "x.safetensors"], "below the largest loss, 1; got 2"),
    "control costs": (
        ["control", "val.npz", "--risk", "1", "--costs", "deep-costs.npy", "-o", "x.safetensors"],
        "K costs or a K x K matrix of them; got shape (5, 5, 5)",
    ),
    "control onto": (["control", "val.npz", "--risk", "0.1", "-o", "rule.safetensors"], "exists. Use --force"),
    "selective error": (["selective", "val.npz", "-e", "1", "-o", "x.safetensors"], "error must be strictly between"),
    "selective hopeless": (["selective", "val.npz", "-e", "0.0001", "-o", "x.safetensors"], "cannot be certified"),
    "selective groups": (["selective", "val.npz", "--by", "group", "-o", "x.safetensors"], "belong together"),
    "multilabel truth": (
        ["multilabel", "val.npz", "-t", "truth.npy", "-o", "x.safetensors"],
        "must have shape (600, 5)",
    ),
    "multilabel precision": (
        ["multilabel", "test.npz", "-t", "truth.npy", "--precision", "0.9", "-o", "x.safetensors"],
        "needs confidence=",
    ),
    "apply truth": (["apply", "rule.safetensors", "test.npz", "--truth", "truth.npy"], "takes --labels, not --truth"),
    "apply groups": (["apply", "rule.safetensors", "test.npz", "--groups", "test-groups.npy"], "leave out --groups"),
    "apply calibration": (["apply", "cal.safetensors", "test.npz"], "cannot load cal.safetensors"),
    "predict rule": (["predict", "rule.safetensors", "test.npz"], "it is a rule, not a calibration"),
    "apply page without labels": (
        ["apply", "rule.safetensors", "unlabelled.npz", "--report", "made-no.html"],
        "--report needs the labels of the rows",
    ),
    "apply page suffix": (["apply", "rule.safetensors", "test.npz", "--report", "x.pdf"], "unknown suffix '.pdf'"),
    "multilabel no truth": (
        ["multilabel", "test.npz", "-t", "no-truth.json", "-o", "x.safetensors"],
        "it has no truth; it holds ids. Name the column truth",
    ),
    "multilabel not json": (
        ["multilabel", "test.npz", "-t", "names.txt", "-o", "x.safetensors"],
        "unknown suffix '.txt'",
    ),
    "apply onto": (["apply", "rule.safetensors", "val.npz", "-o", "val.npz", "-f"], IS_INPUT),
    "plan coverage": (["plan", "--coverage", "1"], "strictly between 0 and 1"),
    "plan tolerance": (["plan", "--tolerance", "-1"], "tolerance must be"),
    "plan confidence": (["plan", "--confidence", "95"], "confidence must be"),
    "show logits": (["show", "val.npz"], "not a calibration"),
    "verify swapped": (["verify", "certificate.json", "cal.safetensors"], "is not a calibration"),
    "verify missing": (["verify", "cal.safetensors", "nowhere.json"], "nowhere.json: no such file"),
    "verify other": (["verify", "cal.safetensors", "val.npz"], "it is not a certificate in JSON"),
    "verify empty": (["verify", "cal.safetensors", "nothing.json"], "must have 'coverage'"),
    "explain row": (["explain", "cal.safetensors", "unlabelled.npz", "--row", "50"], "row 50 does not exist"),
    "explain group": (["explain", "group.safetensors", "unlabelled.npz"], "each row with --groups FILE"),
    "explain classes": (["explain", "cal.safetensors", "narrow.npz"], "must have 5 classes"),
    "explain directory": (["explain", ".", "unlabelled.npz"], "it is a directory"),
    "demo coverage": (["demo", "--coverage", "nan"], "coverage must be strictly between"),
    "demo taken": (["demo", "-o", "taken.html"], "exists. Use --force"),
    "demo trials": (["demo", "--trials", "x"], "--trials"),
    "monitor labels": (["monitor", "cal.safetensors", "unlabelled.npz"], "has no labels"),
    "monitor rate": (["monitor", "cal.safetensors", "test.npz", "--false-alarm-rate", "2"], "false_alarm_rate must be"),
    "monitor state": (
        ["monitor", "cal.safetensors", "test.npz", "--state", "taken.json"],
        "not the state of a monitor",
    ),
    "check labels": (["check", "class.safetensors", "test.npz"], "monitor each group"),
    "check both": (
        ["check", "cal.safetensors", "test.npz", "--no-labels", "-l", "labels.npy"],
        "contradict each other",
    ),
    "check rate": (["check", "cal.safetensors", "unlabelled.npz", "--error", "5"], "error must be strictly between"),
    "check classes": (["check", "cal.safetensors", "narrow.npz"], "must have 5 classes"),
    "check missing": (["check", "cal.safetensors", "test.npz", "-r", "nowhere.npz"], "nowhere.npz: no such file"),
    "check swapped": (["check", "test.npz", "cal.safetensors"], "test.npz is not a calibration"),
    "bench rows": (["bench", "--rows", "5"], "--rows"),
    "bench classes": (["bench", "--classes", "1"], "--classes"),
    "bench rounds": (["bench", "--rounds", "x"], "--rounds"),
    "reproduce missing": (["reproduce", "val=nowhere.npz", "--no-figures", "-o", "x"], "nowhere.npz: no such file"),
    "reproduce name": (["reproduce", "v3=val.npz", "--no-figures", "-o", "x"], "val=FILE or v2=FILE"),
    "reproduce twice": (
        ["reproduce", "val=many.npz", "v2=m*y.npz", "--no-figures", "-o", "x"],
        "many.npz is given as val and as v2",
    ),
    "reproduce trials": (["reproduce", "val=val.npz", "--trials", "0"], "--trials"),
    "unknown command": (["predicate"], "No such command"),
    "unknown option": (["plan", "--tolerence", "0.1"], "No such option"),
    "missing argument": (["predict", "cal.safetensors"], "Missing argument"),
}


if HAS_ONNX:
    BAD["export missing"] = (["export", "nowhere.onnx", "cal.safetensors", "-o", "x.onnx"], "cannot read nowhere.onnx")
    BAD["export not calibration"] = (["export", "tiny.onnx", "val.npz", "-o", "x.onnx"], "not a calibration")
    BAD["export swapped"] = (
        ["export", "cal.safetensors", "tiny.onnx", "-o", "x.onnx"],
        "tiny.onnx is not a calibration. CALIBRATION, a file written by evicp calibrate, comes after MODEL.",
    )
    BAD["export onto"] = (["export", "tiny.onnx", "cal.safetensors", "-o", "tiny.onnx", "-f"], IS_INPUT)
    BAD["export suffix"] = (["export", "tiny.onnx", "cal.safetensors", "-o", "x.pt"], "unknown suffix '.pt'")
if HAS_TORCH:
    BAD["extract missing"] = (["extract", "tiny_network:build", "nowhere", "-o", "x.npz"], "no such file or folder")
    BAD["extract suffix"] = (["extract", "tiny_network:build", "pictures", "-o", "x.zip"], "unknown suffix '.zip'")
    weights = ["--weights", "lac.safetensors", "-o", "lac.safetensors", "-f"]
    BAD["extract onto"] = (["extract", "tiny_network:build", "pictures", *weights], IS_INPUT)
    BAD["extract function"] = (["extract", "tiny_network:nothing", "pictures", "-o", "x.npz"], "nothing")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    """Every call, once."""
    before = set(folder.parent.rglob("*"))
    contents = {path: path.read_bytes() for path in before if path.is_file() and path.name != "taken.csv"}
    calls = {**GOOD, **{name: arguments for name, (arguments, _) in BAD.items()}}
    results = [evicp_process(arguments, folder) for arguments in calls.values()]
    after = {path for path in folder.parent.rglob("*") if not {"reproduction", "__pycache__"} & set(path.parts)}
    strays = after - before - {folder / name for name in MADE}
    assert not strays, "something was written that nobody asked for"
    changed = [path.name for path, content in contents.items() if path.read_bytes() != content]
    assert not changed, "an input was overwritten"
    return dict(zip(calls, results, strict=True))


MADE = (
    *("made.safetensors", "made2.safetensors", "made.csv", "made-evaluation.html", "made-comparison.csv"),
    *("made-board.html", "made-board.csv"),
    *("made-overlapping.safetensors", "made-by-class.safetensors", "made-by-group.safetensors", "made-class.html"),
    *("made-state.json", "made-rows.html", "made-rule.safetensors", "made-rule2.safetensors", "made-applied.csv"),
    *("made-rule3.safetensors", "made-rule4.safetensors", "made-answers.parquet"),
    *("made-rule5.safetensors", "made-rule6.safetensors", "made-rule7.safetensors"),
    *("made-page1.html", "made-page2.html", "made-page3.html"),
    *("made.onnx", "made-extract.npz", "made-extract.npz.manifest.json"),
    *("made.html", "made2.html", "made-near.html", "evicp-demo", "evicp-demo/report.html"),
)


@pytest.mark.parametrize("name", GOOD)
def test_good_calls_succeed_quietly(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.code == 0, run.err
    assert "Traceback" not in run.err
    assert "error" not in run.err


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert run.code == 2
    assert run.out == ""
    lines = run.err.splitlines()
    assert len(lines) == 1, run.err
    assert lines[0].startswith("error: ")
    assert BAD[name][1] in lines[0]


def test_a_report_says_where_it_starts_if_not_as_asked(runs: dict[str, Run]) -> None:
    assert "the report starts at coverage 0.9: its slider has no step at 0.9004." in runs["report near"].err
    assert "starts" not in runs["report class"].err


@pytest.mark.parametrize("name", [name for name, call in GOOD.items() if "--json" in call])
def test_json_meets_its_schema(runs: dict[str, Run], name: str) -> None:
    schema = json.loads((SCHEMAS / f"{GOOD[name][0]}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(runs[name].json, schema, cls=jsonschema.Draft202012Validator)


def test_schemas_bite(runs: dict[str, Run]) -> None:
    """A document without one of its fields, or with a wrong kind of number, does not validate."""
    schema = json.loads((SCHEMAS / "plan.json").read_text())
    good = runs["plan json"].json
    for wrong in ({**good, "rows": 1.5}, {**good, "coverage": 90}, {k: v for k, v in good.items() if k != "table"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_refused_calls_leave_files_alone(runs: dict[str, Run], folder: Path) -> None:
    for name in ("taken.safetensors", "taken.html", "taken.json"):
        assert (folder / name).read_text() == "mine"
    assert (folder / "taken.csv").read_text().startswith("row,size,labels,names")  # --force was given there


def test_calibrate_writes_what_the_library_writes(runs: dict[str, Run], folder: Path) -> None:
    with np.load(folder / "val.npz") as data:
        expected = evicp.calibrate(data["logits"], data["labels"], class_names=HOSTILE)
        tuned = evicp.calibrate(data["logits"], data["labels"], evicp.RAPS(lam=0.5, k_reg=2), class_names=HOSTILE)
    assert evicp.load(folder / "made.safetensors") == expected
    assert evicp.load(folder / "made2.safetensors") == tuned
    assert runs["calibrate json"].json["certificate"]["n"] == 600


def test_predict_gives_the_librarys_sets(runs: dict[str, Run], folder: Path) -> None:
    with np.load(folder / "unlabelled.npz") as data:
        loaded = evicp.load(folder / "cal.safetensors")
        sets, half = loaded.predict(data["logits"], [0.9, 0.5])
    assert [line["labels"] for line in runs["predict json"].json["sets"]] == sets.to_lists()
    streamed = [json.loads(line) for line in runs["predict stream"].out.splitlines()]
    assert [line["labels"] for line in streamed] == half.to_lists()
    assert [line["row"] for line in streamed] == list(range(50))
    rows = list(csv.DictReader(io.StringIO((folder / "made.csv").read_text())))
    assert [[int(x) for x in row["labels"].split()] for row in rows] == sets.to_lists()
    assert runs["predict file json"].json["mean_size"] == pytest.approx(sets.sizes.mean())


def test_evaluate_gives_the_librarys_figures(runs: dict[str, Run], folder: Path) -> None:
    with np.load(folder / "test.npz") as data:
        expected = evicp.evaluate(read_sets(folder / "sets.parquet"), data["labels"], data["logits"])
    got = runs["evaluate json"].json
    assert got["coverage"] == expected.coverage
    assert got["mean_size"] == expected.mean_size
    assert got["sat"] == pytest.approx(expected.sat)
    assert got["promise"]["compatible"] is True
    assert runs["evaluate labels"].json["promise"] is None  # nothing is guaranteed for Base
    assert runs["evaluate labels"].json["accuracy"] is None  # and labels alone say nothing of the logits


def test_the_table_of_a_plan_agrees_with_its_sentence(runs: dict[str, Run]) -> None:
    sentence, _, head, *lines = runs["plan"].out.splitlines()
    assert head.split() == ["rows", "within", "0.05", "95", "%", "from", "95", "%", "to"]
    shares = {line.split()[0]: float(line.split()[1]) for line in lines[: lines.index("")]}
    assert shares[sentence.split()[1]] >= 0.95 > shares["100"]
    table = {str(row["rows"]): row["within"] for row in runs["plan json"].json["table"]}
    assert table == pytest.approx({rows.replace(",", ""): share for rows, share in shares.items()}, abs=5e-5)


def test_a_plan_shows_no_figures_where_every_set_would_be_full(folder: Path) -> None:
    lines = evicp_process(["plan", "-c", "0.999", "-t", "0.001"], folder).out.splitlines()
    assert [line.split() for line in lines if line.startswith("100 ")] == [["100", "-", "-", "-"]]


def test_tables_come_with_what_their_columns_are(runs: dict[str, Run]) -> None:
    assert "ordered by lead in SAT: an average over" in runs["tune text"].out
    assert "  Dirichlet p  softmax  ln score  in set\n" in runs["explain"].out
    assert "\nsoftmax: the network's probability, at the score's temperature.\nDirichlet p: " in runs["explain"].out
    assert {"probability", "utility", "surprisal", "rank"} <= set(runs["explain json"].json["labels"][0])


def test_evaluate_says_which_interval_is_which(runs: dict[str, Run]) -> None:
    assert "], a confidence interval from these rows\n" in runs["evaluate"].out
    said = " ".join(runs["evaluate"].out.split())
    assert said.endswith("], the range of at least 95 % of runs if the guarantee holds")


def test_evaluate_predicts_as_predict_does(runs: dict[str, Run], folder: Path) -> None:
    loaded = evicp.load(folder / "cal.safetensors")
    with np.load(folder / "test.npz") as data:
        logits, labels = data["logits"], data["labels"]
    pac = evicp.evaluate(loaded.predict(logits, 0.8, confidence=0.9), labels, logits)
    got = runs["evaluate pac"].json
    assert (got["mean_size"], got["target_confidence"]) == (pac.mean_size, 0.9)
    law = evicp.Reliability(300, 0.8, 0.9).compatible(pac.coverage, 300)
    assert (got["promise"]["low"], got["promise"]["high"]) == (law.low, law.high)
    assert runs["evaluate class pac"].json["promise"]["groups"] == K
    filled = evicp.evaluate(loaded.predict(logits, 0.5, allow_empty=False), labels, logits)
    got = runs["evaluate filled"].json
    assert (got["mean_size"], got["empty_share"]) == (filled.mean_size, 0)
    promise = got["promise"]
    assert (promise["high"], promise["compatible"]) == (1.0, True)  # filled sets may cover more
    assert promise["coverage"] > evicp.Reliability(300, 0.5).observed_interval(300)[1]


def test_groups_reach_the_library(runs: dict[str, Run], folder: Path) -> None:
    with np.load(folder / "val.npz") as data:
        logits, labels = data["logits"], data["labels"]
    groups = np.load(folder / "groups.npy")
    assert evicp.load(folder / "made-by-class.safetensors") == evicp.calibrate(
        logits, labels, by="class", class_names=HOSTILE
    )
    made = evicp.load(folder / "made-by-group.safetensors")
    assert made == evicp.calibrate(logits, labels, by=groups, class_names=HOSTILE)
    expected = evicp.load(folder / "group.safetensors").predict(logits, 0.8, groups=groups)
    assert [line["labels"] for line in runs["predict group"].json["sets"]] == expected.to_lists()
    pac = runs["predict pac"].json
    assert pac["confidence"] == 0.95
    assert pac["mean_size"] >= runs["predict json"].json["mean_size"]
    assert runs["evaluate class json"].json["promise"]["groups"] == K
    assert runs["evaluate group json"].json["promise"]["groups"] == 3
    assert len(runs["evaluate group json"].json["group_coverage"]["names"]) == 3


def test_plan_and_explain_say_what_the_library_says(runs: dict[str, Run], folder: Path) -> None:
    assert runs["plan json"].json["rows"] == evicp.plan(0.8, 0.05)
    loaded = evicp.load(folder / "cal.safetensors")
    with np.load(folder / "unlabelled.npz") as data:
        expected = evicp.explain(data["logits"][7], loaded.score)
        members = loaded.predict(data["logits"][7], 0.9)[0]
    got = runs["explain json"].json["labels"]
    assert [label["label"] for label in got] == expected.order[:3].tolist()
    assert got[0]["belief"] == pytest.approx(expected.belief[got[0]["label"]])
    assert [label["label"] for label in got if label["in_set"]] == members[:3].tolist()


def test_explain_agrees_with_predict_for_every_score_and_law(runs: dict[str, Run], folder: Path) -> None:
    with np.load(folder / "unlabelled.npz") as data:
        row = data["logits"][7]
    with np.load(folder / "test.npz") as data:
        grouped = data["logits"][7]
    lac, by_group = (evicp.load(folder / f"{name}.safetensors") for name in ("lac", "group"))
    of_row = np.load(folder / "test-groups.npy")[7:8]
    for name, members in {
        "explain lac json": lac.predict(row, 0.9)[0],
        "explain by group": by_group.predict(grouped, 0.9, groups=of_row)[0],
    }.items():
        found = runs[name].json["labels"]
        assert {label["label"] for label in found if label["in_set"]} == set(members.tolist()), name
    assert runs["explain lac json"].json["labels"][0].keys() >= {"probability", "score", "threshold"}


def test_explain_uses_the_thresholds_of_the_classes(runs: dict[str, Run], folder: Path) -> None:
    loaded = evicp.load(folder / "class.safetensors")
    with np.load(folder / "unlabelled.npz") as data:
        members = loaded.predict(data["logits"][7], 0.9)[0]
    got = runs["explain class json"].json
    assert got["threshold"] is None
    assert {label["label"] for label in got["labels"] if label["in_set"]} == set(members.tolist())
    assert {label["label"]: label["threshold"] for label in got["labels"]} == dict(enumerate(loaded.thresholds(0.9)))
    assert "in the set if ln score <= threshold" in runs["explain class"].out


def test_tune_ends_with_a_call_that_works(runs: dict[str, Run], folder: Path, tmp_path: Path) -> None:
    command = shlex.split(runs["tune text"].out.strip().splitlines()[-1].partition("Next: evicp ")[2])
    assert command[command.index("--score") + 1].startswith("lac")
    assert "-o" in command
    words = [{"OTHER_ROWS": str(folder / "val.npz")}.get(word, word) for word in command]
    assert evicp_process(words, tmp_path).code == 0


def test_comparison_csv_has_every_score_and_metric(runs: dict[str, Run], folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "made-comparison.csv").read_text())))
    assert {row["score"] for row in rows} == {"ecp", "lac", "aps", "raps", "base"}
    assert {row["metric"] for row in rows} == {"coverage", "mean_size", "sscv", "sscv_count", "sat"}


def test_rows_to_calibrate_on_are_a_share_or_a_count(runs: dict[str, Run]) -> None:
    compared = runs["compare count"].json
    assert (compared["n_calibration"], compared["n_test"]) == (200, 400)
    assert runs["report count"].json["test_rows"] == 400


def test_one_split_has_no_spread(runs: dict[str, Run]) -> None:
    assert runs["compare count"].json["scores"]["ecp"]["coverage"]["std"] is None
    text = runs["compare once"].out
    assert "coverage 0.9; one split: 180 calibration rows" in text
    assert "(" not in text


@pytest.mark.reliability
def test_hostile_names_are_text_everywhere(runs: dict[str, Run], folder: Path) -> None:
    """Markup in a name is printed, never obeyed; a path in a name is never followed."""
    assert "[bold]markup[/bold]" in runs["predict"].out
    for page in ("made.html", "made2.html", "made-evaluation.html"):
        text = (folder / page).read_text(encoding="utf-8")
        assert "alert(1)</script>" not in text
        assert "<script>alert" not in text
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in (folder / "made.html").read_text(encoding="utf-8")
    assert not (folder.parent.parent / "outside").exists()


def test_demo_ends_by_naming_the_report(runs: dict[str, Run], folder: Path) -> None:
    report = folder / runs["demo json"].json["output"]
    assert report == folder / "evicp-demo" / "report.html"
    assert report.stat().st_size < 8_000_000


# ---------------------------------------------------------------------------------------------------------------
# What is the same in every command, looked at from inside the process


def commands() -> list[Callable[..., None]]:
    return [info.callback for info in app.registered_commands if info.callback is not None]


def test_the_list_of_commands_shows_the_first_line_of_their_help() -> None:
    assert {command.__name__: str(inspect.getdoc(command)).split("\n\n")[0] for command in commands()} == COMMANDS


def test_the_list_of_commands_loads_none_of_them() -> None:
    code = "import sys; sys.argv = ['evicp', '--help']; from evicp.cli.commands import application, commands_in; "
    code += "app = application(commands_in(sys.argv[1:])); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", *(f"evicp.cli.{name}" for name in COMMANDS)} & set(loaded)


def test_every_command_shows_examples_and_speaks_json() -> None:
    for command in commands():
        assert f"evicp {command.__name__}" in getattr(command, "epilog", ""), command.__name__
        assert "as_json" in command.__annotations__, command.__name__


def test_help_lists_every_command(runs: dict[str, Run]) -> None:
    for command in commands():
        assert f" {command.__name__} " in runs["help"].out


def test_no_command_is_the_help_and_exit_2(folder: Path) -> None:
    run = evicp_process([], folder)
    assert run.code == 2
    assert "Usage: evicp" in run.out + run.err


def test_the_package_can_be_run(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "evicp", "--version"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"{evicp.__version__} (kernels: {kernels.level()})")


def test_the_shell_completes_commands_and_scores(folder: Path) -> None:
    for words, number, expected in (("evicp cal", "1", "calibrate"), ("evicp compare --score rap", "3", "raps")):
        shell = {"_EVICP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
        command = [sys.executable, "-c", "from evicp.cli import main; main()"]
        done = subprocess.run(
            command, cwd=folder, env={**ENVIRONMENT, **shell}, capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == [expected]


def test_check_exits_1_when_the_promise_is_broken(folder: Path) -> None:
    """Logits of another world: labels shuffled, so the sets cover far too little."""
    with np.load(folder / "test.npz") as data:
        np.savez(folder / "shifted.npz", logits=data["logits"], labels=np.roll(data["labels"], 1))
    run = evicp_process(["evaluate", "cal.safetensors", "shifted.npz", "--check"], folder)
    (folder / "shifted.npz").unlink()
    assert run.code == 1
    assert "NOT compatible" in run.out


def test_standard_input_takes_npz_npy_json_and_json_lines(folder: Path) -> None:
    with np.load(folder / "unlabelled.npz") as data:
        logits = data["logits"][:4]
    expected = evicp.load(folder / "cal.safetensors").predict(logits, 0.9).to_lists()
    archive, single = io.BytesIO(), io.BytesIO()
    np.savez(archive, logits=logits)
    np.save(single, logits)
    lines = "\n".join(json.dumps(row) for row in logits.tolist()) + "\n"
    texts = (archive.getvalue(), single.getvalue(), json.dumps(logits.tolist()).encode(), lines.encode())
    command = ["predict", "cal.safetensors", "-", "-o", "-"]
    results = [evicp_process(command, folder, data) for data in (*texts, b"hello")]
    for run in results[:4]:
        assert [json.loads(line)["labels"] for line in run.out.splitlines()] == expected
    assert results[4].code == 2
    assert results[4].err.startswith("error: cannot read standard input")


def test_class_names_come_through_standard_input(folder: Path) -> None:
    command = ["calibrate", "-", "-o", "made-stdin.safetensors"]
    assert evicp_process(command, folder, (folder / "val.npz").read_bytes()).code == 0
    made = folder / "made-stdin.safetensors"
    assert evicp.load(made).class_names == HOSTILE
    made.unlink()


def test_figures_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(evicp.errors.MissingExtraError, match=r"evicp\[paper\]', or leave .* --no-figures"):
        app(["reproduce"], standalone_mode=False)


def test_a_closed_pipe_is_no_traceback(folder: Path) -> None:
    """Someone reads one line and leaves, as `head -n 1` does."""
    rows = json.dumps(np.tile(np.arange(1.0, K + 1), (20_000, 1)).tolist()).encode()
    command = [sys.executable, "-c", "from evicp.cli import main; main()", "predict", "cal.safetensors", "-", "-o", "-"]
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(rows)
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read().decode()
        assert process.wait() == 141  # 1 would be a guarantee not kept
    assert errors == ""


def process(code: str, arguments: Sequence[str], folder: Path, **environment: str) -> Run:
    """Python code with the arguments of a command, in a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_any_class_name_can_be_printed(folder: Path, tmp_path: Path, encoding: str) -> None:
    names = ("B\N{LATIN SMALL LETTER A WITH DIAERESIS}r", "\N{CJK UNIFIED IDEOGRAPH-732B}", "c", "d", "e")
    with np.load(folder / "val.npz") as data:
        evicp.calibrate(data["logits"], data["labels"], class_names=names).save(tmp_path / "cal.safetensors")
    words = ["predict", "cal.safetensors", str(folder / "unlabelled.npz")]
    run = process(RUN, [*words, "--json"], tmp_path, PYTHONIOENCODING=encoding)
    assert run.code == 0, run.err
    assert {name for line in run.json["sets"] for name in line["names"]} == set(names)
    assert process(RUN, words, tmp_path, PYTHONIOENCODING=encoding).code == 0


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_signal_ends_a_command_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """Sent while a file is being written: the unfinished file is removed."""
    words = ["predict", str(folder / "cal.safetensors"), str(folder / "unlabelled.npz"), "-o", "sets.jsonl"]
    code = """
import os, signal, time
from evicp.io.files import SetsWriter
signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background are born deaf to it
SetsWriter.append = lambda *_: (os.kill(os.getpid(), signal.{0}), time.sleep(60))  # another thread may get it first
from evicp.cli import main
main()
"""
    ended = {name: process(code.format(name), words, tmp_path) for name in ("SIGTERM", "SIGINT")}
    assert (ended["SIGTERM"].code, ended["SIGTERM"].err) == (143, "")
    assert (ended["SIGINT"].code, ended["SIGINT"].err.strip()) == (130, "error: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_while_importing_is_no_traceback(tmp_path: Path) -> None:
    code = """
import builtins, sys
def interrupted(name, *arguments, original=builtins.__import__):
    if name == "typer":
        raise KeyboardInterrupt
    return original(name, *arguments)
builtins.__import__ = interrupted
from evicp.cli import main
main()
"""
    run = process(code, ["plan"], tmp_path)
    assert (run.code, run.out, run.err) == (130, "", "error: interrupted\n")


def test_terminals_are_not_commanded_by_names(folder: Path, tmp_path: Path) -> None:
    name = "new\x1b[2J.npz"
    shutil.copy(folder / "unlabelled.npz", tmp_path / name)
    np.savez(tmp_path / "other.npz", **{"a\x1b[2Jb": np.zeros((2, K))})
    calibration = str(folder / "cal.safetensors")
    done = evicp_process(["predict", calibration, name, "-o", "s\x1b[2J\n.csv"], tmp_path)
    assert done.code == 0
    assert done.err.splitlines() == [r"wrote s\x1b[2J\n.csv"]
    failed = evicp_process(["predict", calibration, "other.npz"], tmp_path)
    (line,) = failed.err.splitlines()
    assert line.startswith(r"error: cannot read other.npz: it has no array 'logits'; it has a\x1b[2Jb. Name ")
    missing = evicp_process(["predict", calibration, "no\x1b[2J.npz"], tmp_path)
    assert "\x1b" not in missing.err


def test_what_is_printed_is_only_shown(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_text("a\x1b[2J\x9b\u202eb\nc")
    printing.print_table(["x", "name"], [["1", "e\x1b[2J\nf"]], left=(1,))
    shown = capsys.readouterr().out
    assert shown.startswith("a\\x1b[2J\\x9b\\u202eb\nc\n")
    assert "e\\x1b[2J\\nf" in shown
    names = "B\N{LATIN SMALL LETTER A WITH DIAERESIS}r \N{CJK UNIFIED IDEOGRAPH-732B}\N{NO-BREAK SPACE}"
    assert printing.visible(names) == names


def test_small_calibration_warns_in_one_line(folder: Path) -> None:
    run = evicp_process(["predict", "cal.safetensors", "unlabelled.npz", "-c", "0.9999", "--json"], folder)
    assert run.code == 0
    assert run.err.startswith("warning: 300 calibration row(s) cannot guarantee")
    assert len(run.err.splitlines()) == 1
    assert run.json["mean_size"] == K


# ---------------------------------------------------------------------------------------------------------------
# Reading


def saved(tmp_path: Path, suffix: str, logits: np.ndarray, labels: np.ndarray) -> Path:
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npz":
        np.savez(path, logits=logits, labels=labels)
    elif suffix == ".npy":
        path = tmp_path / "logits-1.npy"
        np.save(path, logits)
        np.save(tmp_path / "labels-1.npy", labels)
    elif suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"logits": logits, "labels": labels}, path)
    elif suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        lists = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), logits.shape[1])
        pq.write_table(pa.table({"logits": lists, "labels": labels}), path)
    else:
        torch = pytest.importorskip("torch")
        torch.save({"logits": torch.from_numpy(logits), "labels": torch.from_numpy(labels)}, path)
    return path


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(23, 4)).astype(np.float32), rng.integers(0, 4, 23)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet", ".pt", ".pth"])
def test_every_kind_of_file_reads_the_same(tmp_path: Path, data: tuple[np.ndarray, np.ndarray], suffix: str) -> None:
    logits, labels = data
    rows = inputs.read_rows(str(saved(tmp_path, suffix, logits, labels)), labelled=True)
    np.testing.assert_array_equal(rows.logits, logits)
    np.testing.assert_array_equal(rows.labels, labels)


def test_a_folder_is_its_shards_in_the_order_of_their_numbers(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    logits, labels = data
    for shard in range(12):  # as text, 10 would come before 2
        part = slice(2 * shard, 2 * shard + 2)
        np.savez(tmp_path / f"shard-{shard}.npz", logits=logits[part], labels=labels[part])
    rows = inputs.read_rows(str(tmp_path), labelled=True)
    np.testing.assert_array_equal(rows.logits, logits)
    np.testing.assert_array_equal(rows.labels, labels)
    starts = [start for start, _, _ in rows.blocks()]
    assert starts == list(range(0, 23, 2))


def test_blocks_are_the_rows_and_name_where_they_start(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = data
    rows = inputs.read_rows(str(saved(tmp_path, ".npy", logits, labels)))
    pieces = [(start, block.copy(), truth.copy()) for start, block, truth in rows.blocks(5)]
    assert [start for start, _, _ in pieces] == [0, 5, 10, 15, 20]
    np.testing.assert_array_equal(np.concatenate([block for _, block, _ in pieces]), logits)
    np.testing.assert_array_equal(np.concatenate([truth for _, _, truth in pieces]), labels)
    with pytest.raises(EvicpError, match=r"from 20 on: labels must be in"), located("file", 20):
        evicp.calibrate(logits[20:], labels[20:] + 4)


def test_too_many_labels_do_not_go_unseen(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = data
    np.savez(tmp_path / "rows.npz", logits=logits, labels=np.append(labels, 0))
    with pytest.raises(EvicpError, match="got 24 labels for 23 rows"):
        list(inputs.read_rows(str(tmp_path / "rows.npz")).blocks(5))


def test_a_pickled_module_is_told_from_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "network.pt")
    with pytest.raises(EvicpError, match=r"it contains a pickled module.*torch.save\(\{'logits'") as caught:
        inputs.read_rows(str(tmp_path / "network.pt"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".parquet", ".pt"])
def test_a_suffix_may_be_in_capitals(tmp_path: Path, data: tuple[np.ndarray, np.ndarray], suffix: str) -> None:
    file = saved(tmp_path, suffix, *data)
    file = file.rename(file.with_suffix(suffix.upper()))
    np.testing.assert_array_equal(inputs.read_rows(str(file)).logits, data[0])


def test_class_names_travel_in_capitals_too(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    np.savez(tmp_path / "rows.npz", logits=data[0], class_names=np.array(list("abcd")))
    file = (tmp_path / "rows.npz").rename(tmp_path / "ROWS.NPZ")
    assert inputs.read_rows(str(file)).class_names == ("a", "b", "c", "d")


def test_a_torch_file_never_runs_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"logits": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(EvicpError, match="not a torch file of plain tensors"):
        inputs.read_rows(str(tmp_path / "trap.pt"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: (f / "empty").mkdir(), "contains no file of logits"),
        (lambda f: np.savez(f / "empty", other=np.zeros(3)), "no array 'logits'"),
        (lambda f: np.savez(f / "empty", logits=np.zeros((2, 3)), class_names=np.arange(3)), "array of strings"),
    ],
)
def test_what_cannot_be_read_says_so(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path)
    path = tmp_path / "empty" if (tmp_path / "empty").is_dir() else tmp_path / "empty.npz"
    with pytest.raises(EvicpError, match=message):
        inputs.read_rows(str(path))


@pytest.mark.parametrize(("score", "tied"), [("topk", True), ("lac", False)])
def test_sets_are_judged_as_their_calibration_is(data: tuple, tmp_path: Path, score: str, tied: bool) -> None:
    """Where scores are tied the law of coverage is a bound, and sets in a file remember it."""
    from evicp.evaluation.verdicts import verdict_of
    from evicp.report import payload

    logits, labels = data
    calibration = evicp.calibrate(logits[::2], labels[::2], score)
    write_sets(calibration.predict(logits, 0.6), tmp_path / "sets.parquet")
    sets = read_sets(tmp_path / "sets.parquet")
    assert (sets.tied, calibration.predict(logits, 0.6, smoothed=True).tied) == (tied, False)
    assert calibration.predict(logits, 0.6, confidence=0.9).tied == tied
    assert not evicp.calibrate(logits, labels, score, by="class").predict(logits, 0.6).tied
    evaluation = evicp.evaluate(sets, labels, logits)
    verdict = verdict_of(evaluation)
    assert verdict == verdict_of(evaluation, calibration)
    assert (verdict["high"] == 1.0) == tied
    high = payload.of_evaluation(evaluation, None)["laws"][0]["observed_high"]
    assert (high == payload.pack(np.array([1.0]))) == tied


def test_empty_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for nothing in (b"", b" \n"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(nothing)))
        with pytest.raises(EvicpError, match="standard input: it is empty"):
            inputs.read_rows("-")


def test_class_names_from_text_and_json(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("eins\nzwei drei\n", encoding="utf-8")
    (tmp_path / "names.json").write_text('["eins", "zwei drei"]')
    (tmp_path / "bad.json").write_text('["eins"')
    assert inputs.read_class_names(str(tmp_path / "names.txt")) == ("eins", "zwei drei")
    assert inputs.read_class_names(str(tmp_path / "names.json")) == ("eins", "zwei drei")
    (tmp_path / "marked.txt").write_text("eins\nzwei drei\n\n", encoding="utf-8-sig")
    (tmp_path / "by-label.json").write_text('{"1": "zwei drei", "0": "eins"}')
    (tmp_path / "config.json").write_text('{"model": "x", "id2label": {"0": "eins", "1": "zwei drei"}}')
    (tmp_path / "marks.txt").write_text("[PAD] a\n[UNK]\n")
    assert inputs.read_class_names(str(tmp_path / "marks.txt")) == ("[PAD] a", "[UNK]")
    for good in ("marked.txt", "by-label.json", "config.json"):
        assert inputs.read_class_names(str(tmp_path / good)) == ("eins", "zwei drei")
    (tmp_path / "gap.json").write_text('{"0": "eins", "2": "zwei drei"}')
    (tmp_path / "turned.json").write_text('{"eins": 0, "zwei drei": 1}')
    (tmp_path / "number.json").write_text('{"id2label": 5}')
    for bad in ("bad.json", "none.txt", "gap.json", "turned.json", "number.json"):
        with pytest.raises(EvicpError, match="cannot read class names"):
            inputs.read_class_names(str(tmp_path / bad))
    with pytest.raises(EvicpError, match=r"gap\.json: class_names must map .* nothing for 1\."):
        inputs.read_class_names(str(tmp_path / "gap.json"))


# ---------------------------------------------------------------------------------------------------------------
# Small parts


def test_plain_leaves_nothing_json_cannot_say() -> None:
    value = {"a": np.arange(2), "b": [np.float32(0.5), float("-inf")], "c": Path("x"), 3: None}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "a": [0, 1],
        "b": [0.5, "-inf"],
        "c": "x",
        "3": None,
    }


def test_no_input_is_overwritten_by_any_name(tmp_path: Path) -> None:
    shards, file = tmp_path / "shards", tmp_path / "val.npz"
    shards.mkdir()
    for path in (file, shards / "1.npz", shards / "notes.html"):
        path.write_bytes(b"mine")
    (tmp_path / "link.npz").symlink_to(file)
    check = partial(outputs.check_output, suffixes=(".csv", ".html", ".npz"))
    for target, source in ((file, file), (tmp_path / "link.npz", file), (file, tmp_path / "link.npz")):
        with pytest.raises(EvicpError, match="it is an input"):
            check(target, force=True, inputs=(None, "-", str(source)))
    with pytest.raises(EvicpError, match="part of one"):
        check(shards / ".." / "shards" / "1.npz", force=True, inputs=(str(shards),))
    assert check(shards / "notes.html", force=True, inputs=(str(shards),)).name == "notes.html"
    with pytest.raises(EvicpError, match="it would be read as logits of"):
        check(shards / "new.npz", force=False, inputs=(str(shards), "nowhere"))
    assert check(shards / "new.csv", force=False, inputs=(str(shards), "nowhere")).name == "new.csv"


def test_the_demo_replaces_its_own_report_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evicp.cli.demo import _target

    monkeypatch.chdir(tmp_path)
    page = Path("evicp-demo/report.html")
    assert _target(str(page), force=False) == page
    page.parent.mkdir()
    page.write_text("<html>mine</html>")
    with pytest.raises(EvicpError, match="is not a report of evicp"):
        _target(str(page), force=False)
    assert _target(str(page), force=True) == page
    page.write_text('<!DOCTYPE html>\n<html><head><meta name="generator" content="evicp">')
    assert _target(str(page), force=False) == page


def test_pages_name_the_files_they_are_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the digests that sha256sum gives; folders by their shards, and the network that an extraction noted."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    logits = rng.normal(size=(60, 3)) + 2 * np.eye(3)[labels]
    Path("shards").mkdir()
    np.savez("shards/1.npz", logits=logits[:30], labels=labels[:30])
    np.savez("shards/2.npz", logits=logits[30:], labels=labels[30:])
    made_by = np.array([["name", "resnet18"], ["data_set", "photos"]])
    np.savez("val.npz", logits=logits, labels=labels, source=made_by)
    evicp.calibrate(logits[:30], labels[:30]).save("cal.safetensors")
    digest = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in ("val.npz", "cal.safetensors")}
    for line, files, model in (
        ("report shards -s lac", ["shards/1.npz", "shards/2.npz"], ""),
        (
            "report val.npz --load cal.safetensors --author me --data-set ours",
            ["val.npz", "cal.safetensors"],
            "resnet18",
        ),
        (
            "evaluate cal.safetensors val.npz --author me --note why --model mine",
            ["cal.safetensors", "val.npz"],
            "mine",
        ),
        ("compare val.npz -s lac --trials 2", ["val.npz"], "resnet18"),
    ):
        app([*line.split(), "-o", "page.html", "-f"], standalone_mode=False)
        origin = json.loads(Path("page.html").read_text().split('id="data">')[1].split("</script>")[0])["provenance"]
        assert [file["name"] for file in origin["files"]] == files
        assert all(digest.get(file["name"], file["sha256"]) == file["sha256"] for file in origin["files"])
        assert origin["model"] == model
        assert origin["data_set"] == ("" if "shards" in line else "ours" if "ours" in line else "photos")
        assert origin["author"] == ("me" if "me" in line.split() else "")
    with pytest.raises(InputError, match="--note is for an HTML page"):
        app(["evaluate", "cal.safetensors", "val.npz", "--note", "why", "-o", "out.json"], standalone_mode=False)


def test_a_narrow_terminal_folds_texts_and_keeps_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "stdout_console", lambda: Console(width=30))
    name = "raps(lam=0.012345,randomized=false)"
    printing.print_table(["score", "size", "standard error"], [[name, "1.390", "0.0092"]])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 30 for line in lines)
    assert any("1.390" in line and "0.0092" in line for line in lines)
    assert "".join(line[:10].strip() for line in lines[2:]).startswith("raps(lam=0")
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)


def test_a_narrow_terminal_takes_no_names_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(printing, "stdout_console", lambda: Console(width=30))
    rows = [["ecp", "0.8667 (0.0571)", "1.667 (0.290)"], ["raps(lam=0.012345)", "0.9119 (0.0024)", "1.857 (0.052)"]]
    printing.print_table(["score", "coverage", "size"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["ecp", *rows[0][1].split(), *rows[0][2].split()]
    assert lines[2] == "raps(lam=0  0.9119 (0.0024)  1.857 (0.052)"


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", 3, after=0.0) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_starts_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress("quick", after=60.0) as advance:
        advance(1)
    assert "quick" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["tune", "--score", "raps"], ["compare", "--score", "lac", "--trials", "2"]])
def test_labels_by_name_where_a_choice_is_made(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray], command: list[str]
) -> None:
    names = np.array([f"class {k}" for k in range(data[0].shape[1])])
    np.savez(tmp_path / "numbers.npz", logits=data[0], labels=data[1], class_names=names)
    np.savez(tmp_path / "names.npz", logits=data[0], labels=names[data[1]], class_names=names)
    name, *options = command
    calls = [[name, f"{kind}.npz", *options, "--json"] for kind in ("numbers", "names")]
    first, second = (evicp_process(call, tmp_path) for call in calls)
    assert (first.code, first.out) == (second.code, second.out)
    assert first.code == 0


def test_labels_by_name_with_names_from_a_file(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    names = np.array([f"class {k}" for k in range(data[0].shape[1])])
    (tmp_path / "names.txt").write_text("\n".join(names))
    np.savez(tmp_path / "numbers.npz", logits=data[0], labels=data[1])
    np.savez(tmp_path / "names.npz", logits=data[0], labels=names[data[1]])
    calls = [["compare", f"{kind}.npz", "-s", "lac", "--class-names", "names.txt"] for kind in ("numbers", "names")]
    first, second = (evicp_process(call, tmp_path) for call in calls)
    assert (first.code, first.out) == (0, second.out)


def test_a_report_says_the_coverage_that_its_slider_starts_at(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1])
    run = evicp_process(["report", "val.npz", "-o", "x.html", "--coverage", "0.8123", "--json"], tmp_path)
    assert run.json["coverage"] == 0.812


def test_class_names_of_another_order_are_refused(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    names = [f"class {k}" for k in range(data[0].shape[1])]
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1], class_names=names)
    np.savez(tmp_path / "other.npz", logits=data[0], labels=data[1], class_names=[names[1], names[0], *names[2:]])
    np.savez(tmp_path / "more.npz", logits=data[0], labels=data[1], class_names=[*names, "another"])
    assert evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path).code == 0
    for command in (["predict"], ["evaluate"], ["monitor"], ["explain"]):
        for file, what in (("other", "class 0 is 'class 0' and 'class 1'"), ("more", f"they have {len(names)} and")):
            run = evicp_process([*command, "cal.safetensors", f"{file}.npz"], tmp_path)
            assert run.code == 2
            assert f"must have the same class names; {what}" in run.err
        assert evicp_process([*command, "cal.safetensors", "val.npz"], tmp_path).code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("command", [["plan", "--json"], ["plan"], ["--help"]])
def test_a_full_disk_behind_standard_output_is_no_alarm(tmp_path: Path, command: list[str]) -> None:
    program = [sys.executable, "-c", "from evicp.cli import main; main()", *command]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(program, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize(("file", "code"), [("val.npz", 0), ("none.npz", 2)])
def test_a_full_disk_behind_standard_error_changes_no_exit_code(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray], file: str, code: int
) -> None:
    """Neither by a warning nor by a remark nor by the error itself."""
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1])
    program = [sys.executable, "-c", RUN, "calibrate", file, "-o", "cal.safetensors", "--coverage", "0.999"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, check=False)
    assert (done.returncode, done.stdout.startswith(b"Coverage certificate")) == (code, code == 0)


@pytest.mark.parametrize(("file", "code"), [("val.npz", 0), ("none.npz", 2)])
def test_a_reader_of_standard_error_who_has_gone_changes_no_exit_code(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray], file: str, code: int
) -> None:
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1])
    program = [sys.executable, "-c", RUN, "calibrate", file, "-o", "cal.safetensors", "--coverage", "0.999"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=writer, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout.startswith(b"Coverage certificate")) == (code, code == 0)


def test_closed_streams(tmp_path: Path) -> None:
    program = f"{sys.executable} -c 'from evicp.cli import main; main()'"
    assert subprocess.run(f"{program} plan >&-", shell=True, check=False, cwd=tmp_path).returncode == 0
    done = subprocess.run(f"{program} tune - <&-", shell=True, check=False, cwd=tmp_path, stderr=subprocess.PIPE)
    assert (done.returncode, b"standard input: it is closed" in done.stderr) == (2, True)


def test_what_is_no_rows_is_said(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    np.savez(tmp_path / "zero.npz", logits=np.float32(1.0), labels=np.int64(0))
    run = evicp_process(["tune", "zero.npz"], tmp_path)
    assert (run.code, "zero.npz must contain rows; it contains a single number" in run.err) == (2, True)
    (tmp_path / "folder").mkdir()
    for number in range(2):
        np.save(tmp_path / "folder" / f"{number}.npy", data[0] + number)
    np.save(tmp_path / "l.npy", np.int64(3))
    run = evicp_process(["tune", "folder", "--labels", "l.npy"], tmp_path)
    assert (run.code, "labels must have one dimension; got shape ()" in run.err) == (2, True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    program = [sys.executable, "-c", "from evicp.cli import main; main()", "tune", "pipe.npz"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert (done.returncode, b"not a regular file" in done.stderr) == (2, True)


def test_no_result_is_put_among_the_shards(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    (tmp_path / "shards").mkdir()
    np.savez(tmp_path / "shards" / "0.npz", logits=data[0], labels=data[1])
    run = evicp_process(["calibrate", "shards", "-o", "shards/cal.safetensors"], tmp_path)
    assert (run.code, "it would be read as logits of shards" in run.err) == (2, True)
    assert evicp_process(["calibrate", "shards", "-o", "cal.safetensors"], tmp_path).code == 0


def test_sets_are_not_held_against_classes_of_another_order(
    tmp_path: Path, data: tuple[np.ndarray, np.ndarray]
) -> None:
    names = [f"class {k}" for k in range(data[0].shape[1])]
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1], class_names=names)
    np.savez(tmp_path / "other.npz", logits=data[0], labels=data[1], class_names=[names[1], names[0], *names[2:]])
    evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path)
    evicp_process(["predict", "cal.safetensors", "val.npz", "-o", "sets.npz"], tmp_path)
    assert evicp_process(["evaluate", "sets.npz", "val.npz"], tmp_path).code == 0
    run = evicp_process(["evaluate", "sets.npz", "other.npz"], tmp_path)
    assert run.code == 2
    assert "must have the same class names; class 0 is 'class 0' and 'class 1'" in run.err


def test_a_table_of_sets_has_one_head(tmp_path: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    """Also where the first file has no rows."""
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1])
    (tmp_path / "new").mkdir()
    for number, rows in enumerate((slice(0), slice(3), slice(0), slice(3, 5))):
        np.savez(tmp_path / "new" / f"{number}.npz", logits=data[0][rows])
    evicp_process(["calibrate", "val.npz", "-o", "cal.safetensors"], tmp_path)
    assert evicp_process(["predict", "cal.safetensors", "new", "-o", "sets.csv"], tmp_path).code == 0
    lines = (tmp_path / "sets.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["row", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_torch_file_may_hold_a_pair(tmp_path: Path, kind: type) -> None:
    torch = pytest.importorskip("torch")
    logits, labels = torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4)
    torch.save(kind([logits, labels]), tmp_path / "pair.pt")
    rows = inputs.read_rows(str(tmp_path / "pair.pt"), labelled=True)
    np.testing.assert_array_equal(rows.logits, logits.numpy())
    np.testing.assert_array_equal(rows.labels, labels.numpy())
