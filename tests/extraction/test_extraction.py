"""Extraction without a network: label order, ground truth, transforms, files, and the loop that survives anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp import blocks
from evicp.errors import FileError, InputError, InputTypeError, LabelsError, LogitsError, MissingExtraError
from evicp.extraction import Network, Preprocess, Source, extract, open_source
from evicp.extraction.classes import imagenet_names, imagenet_synsets, match_classes
from evicp.extraction.ground_truth import read_ground_truth
from evicp.extraction.network import choose_transform
from evicp.extraction.sources import network_labels
from evicp.io import files

N_LETTERS = 26


def letters_network(**changes: object) -> Network:
    """Logits of a text: how often each letter occurs, against its place in the alphabet."""

    def logits(texts: list[str]) -> np.ndarray:
        counts = np.array([[text.count(chr(97 + k)) for k in range(N_LETTERS)] for text in texts], np.float32)
        return counts + np.arange(N_LETTERS, dtype=np.float32) / 100

    parts = {"name": "letters", "n_classes": N_LETTERS, "prepare": str.lower, "logits": logits, "modality": "text"}
    return Network(**{**parts, "settings": {"network": "letters"}, **changes})


def texts(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(chr(97 + k) for k in rng.integers(0, N_LETTERS, 30)) for _ in range(n)]


def write_table(path: Path, n: int, seed: int = 0) -> Path:
    rows = texts(n, seed)
    lines = ["text,label", *(f"{text},{i % N_LETTERS}" for i, text in enumerate(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "texts.csv", 100)


def draw(path: Path, value: int = 0, size: tuple[int, int] = (12, 9)) -> None:
    """Write an image that differs from others by its value."""
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (np.arange(size[0] * size[1] * 3).reshape(size[1], size[0], 3) * 7 + value) % 256
    image.fromarray(pixels.astype(np.uint8)).save(path)


def brightness_network() -> Network:
    """Two logits of an image, from its mean."""

    def logits(images: list[np.ndarray]) -> np.ndarray:
        means = np.array([image.mean() for image in images], np.float32)
        return np.stack([means, -means], 1)

    return Network("brightness", 2, Preprocess(size=(8, 8), resize=8), logits)


# ---------------------------------------------------------------------------------------------------------------
# Label order


def test_the_synsets_are_a_thousand_in_ascending_order():
    synsets = imagenet_synsets()
    assert len(set(synsets)) == 1000
    assert list(synsets) == sorted(synsets)
    anchors = {0: "n01440764", 281: "n02123045", 657: "n03773504", 967: "n07920052", 999: "n15075141"}
    assert {number: synsets[number] for number in anchors} == anchors


def test_synsets_are_found_by_their_place_among_all_thousand():
    some = [imagenet_synsets()[k] for k in (999, 3, 500)]
    for class_names in (None, imagenet_names(), imagenet_synsets()):
        assert match_classes(some, 1000, class_names).tolist() == [999, 3, 500]


def test_synsets_of_a_network_with_other_classes_are_refused():
    shuffled = tuple(np.random.default_rng(0).permutation(imagenet_names()))
    with pytest.raises(LabelsError, match=r"'n01440764' is not one of the network's 1000 classes"):
        match_classes(["n01440764"], 1000, shuffled)
    with pytest.raises(LabelsError, match=r"2 classes .* and the network 10, whose names are not known"):
        match_classes(["n01440764", "n01443537"], 10, None)


def test_a_synset_outside_imagenet_is_named():
    with pytest.raises(LabelsError, match="'n99999999' is not one of the network's 1000 classes"):
        match_classes(["n01440764", "n99999999"], 1000, None)


def test_names_are_matched_whatever_their_order_case_and_underscores():
    names = ["great_white_shark", "Tench", "goldfish, Carassius auratus"]
    assert match_classes(names, 1000, imagenet_names()).tolist() == [2, 0, 1]


def test_a_name_that_two_classes_share_is_refused_unless_the_order_tells():
    classes = ("crane", "cat", "crane")
    assert match_classes(classes, 3, classes).tolist() == [0, 1, 2]
    with pytest.raises(LabelsError, match=r"'crane' is the name of the network's classes \[0, 2\]"):
        match_classes(["cat", "crane"], 3, classes)


def test_two_names_of_one_class_are_refused():
    with pytest.raises(LabelsError, match="two classes of the data are one class"):
        match_classes(["cat, house", "cat"], 3, ("cat", "dog", "cow"))


def test_unknown_names_are_trusted_in_number_only():
    assert match_classes(["b", "a"], 2, None).tolist() == [0, 1]
    with pytest.raises(LabelsError, match="so they cannot be matched"):
        match_classes(["a", "b"], 3, None)


def test_labels_beyond_the_network_are_refused():
    source = Source(Path(), ("a", "b"), str, labels=np.array([1, 3]))
    with pytest.raises(LabelsError, match=r"labels must be in \[0, 3\); got 3 at row 1. Did you pass one-based"):
        network_labels(source, 3, None)


# ---------------------------------------------------------------------------------------------------------------
# Sources


def test_numbered_folders_are_sorted_and_read_as_numbers(tmp_path):
    for folder in range(12):  # as strings: 0, 1, 10, 11, 2, ...
        draw(tmp_path / str(folder) / "2.png", folder)
        draw(tmp_path / str(folder) / "10.png", folder)
    source = open_source(tmp_path)
    assert source.labels.tolist() == [label for label in range(12) for _ in range(2)]
    assert source.inputs[2 * 10 : 2 * 10 + 2] == ("10/2.png", "10/10.png")
    assert network_labels(source, 12, None).tolist() == source.labels.tolist()


def test_numbered_folders_that_begin_at_one_are_refused(tmp_path):
    for folder in range(1, 4):
        draw(tmp_path / str(folder) / "a.png")
    with pytest.raises(LabelsError, match="Did you pass one-based labels"):
        network_labels(open_source(tmp_path), 3, None)


def test_synset_folders_of_a_part_of_imagenet_get_imagenets_numbers(tmp_path):
    for synset in ("n02123045", "n01440764"):
        draw(tmp_path / synset / "x.JPEG")
    (tmp_path / "n15075141").mkdir()  # a class without images
    (tmp_path / ".cache").mkdir()
    draw(tmp_path / ".cache" / "thumbnail.png")
    (tmp_path / "n01440764" / "notes.txt").write_text("not an image")
    source = open_source(tmp_path)
    assert source.inputs == ("n01440764/x.JPEG", "n02123045/x.JPEG")
    assert network_labels(source, 1000, imagenet_names()).tolist() == [0, 281]


def test_images_beside_folders_are_ambiguous(tmp_path):
    draw(tmp_path / "a.png")
    draw(tmp_path / "cat" / "b.png")
    with pytest.raises(FileError, match=r"both directly \(a.png\) and in folders"):
        open_source(tmp_path)


def test_a_flat_folder_without_ground_truth_has_no_labels(tmp_path):
    draw(tmp_path / "photo10.png")
    draw(tmp_path / "photo9.png")
    source = open_source(tmp_path)
    assert source.inputs == ("photo9.png", "photo10.png")
    assert source.labels is None
    assert network_labels(source, 5, None) is None


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("b.png 7\na.png 281\n", "val.txt"),
        ("val/b.png\t7\nval/a.png\t281\n", "val.tsv"),
        ("b,7\na,281\n", "val.csv"),
        ("file,label\nb.png,7\na.png,281\n", "val.csv"),
        ("281\n7\n", "labels.txt"),
        ("n02123045\nn01514668\n", "synsets.txt"),
        ("ImageId,PredictionString\nb,n01514668 1 2 3 4 \na,n02123045 1 2 3 4 n02123045 5 6 7 8\n", "LOC.csv"),
        ("a.png tabby\nb.png cock\n", "names.txt"),
    ],
)
def test_every_form_of_ground_truth_gives_the_same_labels(tmp_path, content, name):
    images = tmp_path / "images"
    draw(images / "a.png")
    draw(images / "b.png")
    (tmp_path / name).write_text(content)
    source = open_source(images, labels=tmp_path / name)
    assert network_labels(source, 1000, imagenet_names()).tolist() == [281, 7]


def test_the_development_kits_numbers_go_through_its_table(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    truth = tmp_path / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("2\n1\n")
    with pytest.raises(LabelsError, match=r"not the order of any weights\. Put the kit's meta.mat in the same folder"):
        read_ground_truth(truth, ["a.png", "b.png"])
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    table = np.array([(1, "n02119789", "kit fox"), (2, "n02100735", "English setter")], dtype=kinds)
    scipy_io.savemat(tmp_path / "meta.mat", {"synsets": table.reshape(-1, 1)})
    assert read_ground_truth(truth, ["a.png", "b.png"]) == ["n02100735", "n02119789"]
    truth.write_text("3\n1\n")
    with pytest.raises(LabelsError, match="holds the number 3"):
        read_ground_truth(truth, ["a.png", "b.png"])


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("1\n2\n3\n", LabelsError, "3 labels for 2 images"),
        ("a.png 1\nc.png 2\n", LabelsError, "no label for b.png"),
        ("a.png 1\nb.png\n", FileError, "some lines have a label and some have none"),
        ("\n\n", FileError, "it is empty"),
    ],
)
def test_incomplete_ground_truth_is_refused(tmp_path, content, error, message):
    (tmp_path / "truth.txt").write_text(content)
    with pytest.raises(error, match=message):
        read_ground_truth(tmp_path / "truth.txt", ["a.png", "b.png"])


def test_a_table_of_paths_is_relative_to_itself(tmp_path):
    draw(tmp_path / "far" / "a.png", 1)
    (tmp_path / "list.csv").write_text("label,path\ndog,far/a.png\ncat,far/b.png\n")
    source = open_source(tmp_path / "list.csv")
    assert source.inputs == ("far/a.png", "far/b.png")
    assert network_labels(source, 2, ("dog", "cat")).tolist() == [0, 1]
    assert source.read(0).size == (12, 9)


def test_a_table_of_texts_and_chosen_columns(tmp_path):
    (tmp_path / "a.csv").write_text('text,grade\n"one, two",1\n"three\nfour",0\n')
    source = open_source(tmp_path / "a.csv", label_column="grade")
    assert (source.modality, source.read(0), source.read(1)) == ("text", "one, two", "three\nfour")
    assert source.labels.tolist() == [1, 0]
    assert open_source(tmp_path / "a.csv").labels is None
    with pytest.raises(InputError, match="a ground-truth file is for a folder of images"):
        open_source(tmp_path / "a.csv", labels="truth.txt")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,y\n1,2\n", {}, "needs a header with a column of paths"),
        ("path,label\na.png\n", {}, "data row 0 has 1 fields, not 2"),
        ("path,label\na.png,1\n", {"label_column": "grade"}, "no column 'grade'; it has path, label"),
        ("path,label\n", {}, "contains no inputs"),
        ("", {}, "needs a header"),
        (b"\xff\xfe\x00", {}, "not a CSV file in UTF-8"),
    ],
)
def test_a_malformed_table_is_refused(tmp_path, content, options, message):
    path = tmp_path / "list.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError, match=message):
        open_source(path, **options)


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="no such file or folder"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(FileError, match="contains no inputs"):
        open_source(tmp_path)


def test_what_a_source_does_not_have_is_refused(tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.png,1\n")
    for path in (tmp_path, tmp_path / "list.csv"):
        with pytest.raises(InputError, match="a split needs a Hugging Face data set"):
            open_source(path, split="test")
    for option in ("input_column", "label_column"):
        with pytest.raises(InputError, match="is a folder of images"):
            open_source(tmp_path, **{option: "path"})


# ---------------------------------------------------------------------------------------------------------------
# Transforms


def test_normalisation_layout_and_channels(tmp_path):
    draw(tmp_path / "a.png", size=(4, 4))
    image = pytest.importorskip("PIL.Image").open(tmp_path / "a.png")
    pixels = np.asarray(image, np.float64)
    plain = Preprocess(size=(4, 4), resize=4, scale=1, mean=(127,), std=(128,))
    with pytest.raises(InputError, match="1 or 3 channels"):
        Preprocess(mean=(1, 2), std=(1, 2))
    coloured = plain.changed({"mean": (127, 0, 1), "std": (128, 1, 2)})
    expected = (pixels - [127, 0, 1]) / [128, 1, 2]
    np.testing.assert_array_equal(coloured(image), expected.transpose(2, 0, 1).astype(np.float32))
    np.testing.assert_array_equal(coloured.changed({"layout": "HWC"})(image), expected.astype(np.float32))
    assert (plain.channels, plain(image).shape, plain.shape) == (1, (1, 4, 4), (1, 4, 4))
    assert Preprocess(mean=0.5).mean == (0.5, 0.5, 0.5)  # one number is for all channels
    assert Preprocess(mean=0.5, std=(2.0,)).mean == (0.5,)
    assert plain.changed({"mean": 3.0}).mean == (3.0,)
    assert coloured.changed({"mean": 3.0}).mean == (3.0, 3.0, 3.0)


def test_the_central_square_is_cut_before_resizing():
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[10:90, 60:140] = 255  # the central square of 80 of 100
    whole = Preprocess(size=(7, 7), resize=None, fraction=0.8, scale=1, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert whole(image.fromarray(pixels)).min() == 255
    assert whole.changed({"fraction": 0.9})(image.fromarray(pixels)).min() < 255


def test_a_new_size_keeps_its_proportion():
    assert Preprocess().changed({"size": (448, 448)}).resize == 512
    assert Preprocess().changed({"size": (448, 448), "resize": 448}).resize == 448
    assert Preprocess(resize=None).changed({"size": (32, 32)}).resize is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interpolation": "magic"}, "interpolation must be one of"),
        ({"layout": "CWH"}, "layout must be"),
        ({"resize": 200}, "resize must be at least the size of the crop, 224"),
        ({"std": 0.0}, "no zero scale"),
        ({"fraction": 0.0}, "0 < fraction"),
        ({"colour": 1}, "a transform has no colour"),
    ],
)
def test_an_impossible_transform_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        Preprocess().changed(changes)


# ---------------------------------------------------------------------------------------------------------------
# The loop and its files


@pytest.mark.parametrize("mine", ["mine", "{}", "[1]"])
def test_a_file_where_the_manifest_belongs_is_not_replaced(table, tmp_path, mine):
    output, beside = tmp_path / "logits.npz", tmp_path / "logits.npz.manifest.json"
    beside.write_text(mine)
    with pytest.raises(FileError, match=r"logits\.npz\.manifest\.json exists\. Use force"):
        evicp.extract(letters_network(), table, output)
    assert beside.read_text() == mine
    evicp.extract(letters_network(), table, output, force=True)
    output.unlink()
    evicp.extract(letters_network(), table, output)  # what an earlier run has left is no loss


def test_logits_labels_and_names_arrive_in_order(table, tmp_path):
    output = tmp_path / "logits.npz"
    names = [f"letter {k}" for k in range(N_LETTERS)]
    result = evicp.extract(letters_network(), table, output, batch_size=7, shard_size=16, class_names=names, workers=3)
    with np.load(output, allow_pickle=False) as arrays:
        expected = letters_network().logits(texts(100))
        np.testing.assert_array_equal(arrays["logits"], expected)
        assert arrays["logits"].dtype == np.float32
        assert arrays["labels"].tolist() == [i % N_LETTERS for i in range(100)]
        assert arrays["inputs"].tolist() == [f"row {i}" for i in range(100)]
        assert arrays["class_names"].tolist() == names
    assert (result.n, result.n_classes, result.unreadable, result.resumed) == (100, N_LETTERS, (), 0)
    assert result.accuracy == np.mean(expected.argmax(1) == np.arange(100) % N_LETTERS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logits.npz", "logits.npz.manifest.json", "texts.csv"]


def test_the_bytes_do_not_depend_on_threads_or_time(table, tmp_path):
    contents = []
    for workers in (0, 1, 4):
        output = tmp_path / f"{workers}.npz"
        extract(letters_network(), table, output, batch_size=7, shard_size=16, workers=workers)
        contents.append(output.read_bytes())
        with zipfile.ZipFile(output) as archive:
            assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert len(set(contents)) == 1


def test_every_format_holds_the_same(table, tmp_path):
    pytest.importorskip("safetensors")
    expected = letters_network().logits(texts(100))
    for name in ("a.npz", "a.safetensors", "logits-a.npy", "b.npy"):
        extract(letters_network(), table, tmp_path / name, shard_size=30)
    for name, labels in (
        ("a.npz", None),
        ("a.safetensors", None),
        ("logits-a.npy", "labels-a.npy"),
        ("b.npy", "b.labels.npy"),
    ):
        read = files.read_logits(tmp_path / name, labels and tmp_path / labels)
        np.testing.assert_array_equal(read.logits, expected)
        np.testing.assert_array_equal(read.labels, np.arange(100) % N_LETTERS)
        np.testing.assert_array_equal(blocks.open_rows(tmp_path / name).labels, read.labels)


def test_a_source_without_labels_gives_a_file_without_labels(tmp_path):
    (tmp_path / "a.csv").write_text("text\nabc\nxyz\n")
    result = extract(letters_network(), tmp_path / "a.csv", tmp_path / "a.npz")
    assert result.accuracy is None
    assert files.read_logits(tmp_path / "a.npz").labels is None


def test_an_interrupted_run_loses_at_most_one_shard(table, tmp_path):
    clean, output = tmp_path / "clean.npz", tmp_path / "again.npz"
    settings = {"batch_size": 4, "shard_size": 16, "progress": False}
    extract(letters_network(), table, clean, **settings)
    seen: list[str] = []

    def interrupt_after(limit: int) -> Network:
        def logits(batch: list[str]) -> np.ndarray:
            if len(seen) >= limit:
                raise KeyboardInterrupt
            seen.extend(batch)
            return letters_network().logits(batch)

        return letters_network(logits=logits)

    with pytest.raises(KeyboardInterrupt):
        extract(interrupt_after(60), table, output, **settings)
    assert not output.exists()
    assert len(seen) == 60
    seen.clear()
    result = extract(interrupt_after(1000), table, output, **settings)
    assert result.resumed == 48  # three whole shards of the 60 inputs done
    assert len(seen) == 52
    assert output.read_bytes() == clean.read_bytes()
    assert not output.with_name("again.npz.parts").exists()
    seen.clear()
    done = extract(interrupt_after(0), table, output, **settings)  # finished: the network is not run
    assert (done.n, done.resumed, done.rate) == (100, 100, None)
    assert done.accuracy == result.accuracy


def test_other_settings_are_not_mixed_in(table, tmp_path):
    output = tmp_path / "a.npz"

    def failing(texts: list[str]) -> np.ndarray:
        if texts[0] == failing.last:
            raise RuntimeError("out of memory")
        return letters_network().logits(texts)

    failing.last = texts(100)[64]
    with pytest.raises(InputError, match=r"letters failed on 8 inputs from row 64 on: out of memory .*smaller batch"):
        extract(letters_network(logits=failing), table, output, batch_size=8, shard_size=16)
    other = letters_network(settings={"network": "other letters"})
    with pytest.raises(FileError, match=r'begun with other settings: network was "letters", is "other letters"; batch'):
        extract(other, table, output, batch_size=4, shard_size=16)
    write_table(tmp_path / "texts.csv", 100, seed=1)
    with pytest.raises(FileError, match=r"begun with other settings: inputs was [0-9a-f]{12}, is [0-9a-f]{12}\. "):
        extract(letters_network(), table, output, batch_size=8, shard_size=16)
    result = extract(letters_network(), table, output, batch_size=8, shard_size=16, force=True)
    assert result.resumed == 0
    np.testing.assert_array_equal(np.load(output)["logits"], letters_network().logits(texts(100, seed=1)))


def transformed_network(transform: object, fail_at: float | None = None) -> Network:
    """Two logits of an image from its transform; a mean of `fail_at` ends the run."""

    def logits(inputs: list[np.ndarray]) -> np.ndarray:
        means = np.array([x.mean() for x in inputs], np.float32)
        if fail_at is not None and (means == np.float32(fail_at)).any():
            raise RuntimeError("stop")
        return np.stack([means, -means], 1)

    prepare, described = choose_transform(transform, None)
    return Network("means", 2, prepare, logits, {"transform": described})


def scaled(scale: float) -> Preprocess:
    return Preprocess(size=4, resize=4, scale=1 / scale, mean=(0.0,), std=(1.0,))


def flat(folder: Path, n: int = 6) -> Path:
    """A folder of images of one grey each."""
    for i in range(n):
        grey(folder / f"{i}.png", 10 * i)
    return folder


def grey(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    pytest.importorskip("PIL.Image").new("L", (4, 4), value).save(path)


def test_another_transform_is_not_taken_for_the_one_before(tmp_path):
    images, output = flat(tmp_path / "images"), tmp_path / "a.npz"
    extract(transformed_network(scaled(1)), images, output)
    assert extract(transformed_network(scaled(1)), images, output).resumed == 6
    with pytest.raises(FileError, match=r"other settings: transform\.scale was 1\.0, is 0\.5\. "):
        extract(transformed_network(scaled(2)), images, output)
    extract(transformed_network(scaled(2)), images, output, force=True)
    assert extract(transformed_network(scaled(2)), images, output).resumed == 6
    assert np.load(output)["logits"][:, 0].tolist() == [0, 20, 40, 60, 80, 100]


def test_an_interrupted_run_is_not_gone_on_with_under_another_transform(tmp_path):
    images, output = flat(tmp_path / "images"), tmp_path / "a.npz"
    how = {"batch_size": 1, "shard_size": 1}
    with pytest.raises(InputError, match="stop"):
        extract(transformed_network(scaled(2), fail_at=60), images, output, **how)
    with pytest.raises(FileError, match=r"other settings: transform\.scale was"):
        extract(transformed_network(scaled(4)), images, output, **how)
    assert extract(transformed_network(scaled(2)), images, output, **how).resumed == 3


GAIN = 1.0


@pytest.mark.parametrize(
    "transform",
    [
        lambda image: np.asarray(image) * GAIN,
        partial(np.multiply, 1),
        np.asarray,
        type("Doubled", (), {"__call__": lambda _, image: np.asarray(image) * 2})(),
    ],
    ids=["function", "partial", "built-in", "object"],
)
def test_a_function_is_never_taken_for_the_one_before(tmp_path, transform):
    """Its code, what it calls and what it reads could all differ: what a function does cannot be told."""
    images, output = flat(tmp_path / "images"), tmp_path / "a.npz"
    extract(transformed_network(transform), images, output)
    message = r"transform.code cannot be compared with it\. Use another output, or start again with force"
    with pytest.raises(FileError, match=message):
        extract(transformed_network(transform), images, output)
    assert extract(transformed_network(transform), images, output, force=True).resumed == 0
    output.unlink()
    how = {"batch_size": 1, "shard_size": 1}
    with pytest.raises(InputError, match="stop"):
        extract(
            transformed_network(transform, fail_at=np.mean(transform(np.full((4, 4, 1), 30)))), images, output, **how
        )
    with pytest.raises(FileError, match=message):
        extract(transformed_network(transform), images, output, **how)


def test_a_network_whose_settings_say_what_its_function_does_is_known_again(tmp_path):
    images, output, how = flat(tmp_path / "images"), tmp_path / "a.npz", {"batch_size": 1, "shard_size": 1}

    def network(version: str, fail_at: float | None = None) -> Network:
        made = transformed_network(np.asarray, fail_at)
        return Network(made.name, 2, made.prepare, made.logits, {"transform": version})

    with pytest.raises(InputError, match="stop"):
        extract(network("grey, 1", fail_at=30), images, output, **how)
    with pytest.raises(FileError, match=r'other settings: transform was "grey, 1", is "grey, 2"'):
        extract(network("grey, 2"), images, output, **how)
    assert extract(network("grey, 1"), images, output, **how).resumed == 3


@pytest.mark.parametrize("listed", ["folder", "table"])
def test_images_written_anew_are_not_taken_for_those_before(tmp_path, listed):
    folder, output = flat(tmp_path / "images"), tmp_path / "a.npz"
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"images/{i}.png\n" for i in range(6)))
    source = folder if listed == "folder" else tmp_path / "list.csv"
    network = transformed_network(scaled(1))
    extract(network, source, output)
    assert extract(network, source, output).resumed == 6
    written = (folder / "3.png").stat()
    grey(folder / "3.png", 200)
    os.utime(folder / "3.png", ns=(written.st_atime_ns, written.st_mtime_ns + 1000))
    with pytest.raises(FileError, match=r"other settings: inputs was [0-9a-f]{12}, is [0-9a-f]{12}\. "):
        extract(network, source, output)
    assert extract(network, source, output, force=True).resumed == 0
    assert np.load(output)["logits"][3, 0] == 200


def test_a_finished_file_is_neither_overwritten_nor_believed_when_changed(table, tmp_path):
    output = tmp_path / "a.npz"
    extract(letters_network(), table, output)
    good = output.read_bytes()
    with pytest.raises(FileError, match="batch_size was 64, is 32"):
        extract(letters_network(), table, output, batch_size=32)
    output.write_bytes(good[:-1])
    with pytest.raises(FileError, match="exists and is not a result of this command"):
        extract(letters_network(), table, output)
    extract(letters_network(), table, output, force=True)
    assert output.read_bytes() == good


def test_a_forced_run_that_was_interrupted_is_gone_on_with(table, tmp_path):
    output = tmp_path / "a.npz"
    extract(letters_network(), table, output, batch_size=8, shard_size=16)

    def interrupted(batch: list[str]) -> np.ndarray:
        if batch[0] == texts(100)[40]:
            raise KeyboardInterrupt
        return letters_network().logits(batch)

    with pytest.raises(KeyboardInterrupt):
        extract(letters_network(logits=interrupted), table, output, batch_size=4, shard_size=16, force=True)
    result = extract(letters_network(), table, output, batch_size=4, shard_size=16)
    assert (result.n, result.resumed) == (100, 32)


def test_settings_may_change_before_the_first_shard(table, tmp_path):
    def broken(texts: list[str]) -> np.ndarray:
        raise RuntimeError("out of memory")

    with pytest.raises(InputError, match="out of memory"):
        extract(letters_network(logits=broken), table, tmp_path / "a.npz", batch_size=64)
    assert extract(letters_network(), table, tmp_path / "a.npz", batch_size=8).n == 100


def test_a_damaged_shard_is_named(table, tmp_path):
    output = tmp_path / "a.npz"

    def broken(texts_: list[str]) -> np.ndarray:
        if texts_[0] == texts(100)[64]:
            raise RuntimeError("stop")
        return letters_network().logits(texts_)

    with pytest.raises(InputError, match="stop"):
        extract(letters_network(logits=broken), table, output, batch_size=8, shard_size=16)
    shard = tmp_path / "a.npz.parts" / "shard-00001.npz"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(FileError, match=r"shard-00001.npz: .* Delete it and run again"):
        extract(letters_network(), table, output, batch_size=8, shard_size=16)
    shard.unlink()
    assert extract(letters_network(), table, output, batch_size=8, shard_size=16).resumed == 48 + 16 + 20


def test_unreadable_images_are_counted_listed_and_left_out(tmp_path):
    folder = tmp_path / "images"
    for i in range(10):
        draw(folder / str(i % 2) / f"{i}.png", 20 * i)
    whole = (folder / "0" / "4.png").read_bytes()
    (folder / "0" / "4.png").write_bytes(whole[: len(whole) // 2])
    (folder / "1" / "3.png").write_bytes(b"")
    (folder / "1" / "5.png").write_text("<html>not found</html>")
    result = extract(brightness_network(), folder, tmp_path / "a.npz", batch_size=3, shard_size=4)
    assert [item.input for item in result.unreadable] == ["0/4.png", "1/3.png", "1/5.png"]
    assert all(item.reason for item in result.unreadable)
    assert result.n == 7
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["inputs"].tolist() == [
            "0/0.png",
            "0/2.png",
            "0/6.png",
            "0/8.png",
            "1/1.png",
            "1/7.png",
            "1/9.png",
        ]
        assert arrays["labels"].tolist() == [0, 0, 0, 0, 1, 1, 1]
        source = open_source(folder)
        rows = [source.inputs.index(name) for name in arrays["inputs"]]
        network = brightness_network()
        expected = np.concatenate([network.logits([network.prepare(source.read(row))]) for row in rows])
        np.testing.assert_allclose(arrays["logits"], expected, rtol=1e-6)
    manifest = json.loads((tmp_path / "a.npz.manifest.json").read_text())
    assert [item["input"] for item in manifest["unreadable"]] == ["0/4.png", "1/3.png", "1/5.png"]
    assert "3 could not be read and were skipped" in str(result)


def test_a_whole_batch_or_source_of_unreadable_images(tmp_path):
    folder = tmp_path / "images"
    for name in ("a.png", "b.png", "c.png"):
        draw(folder / name)
        (folder / name).write_bytes(b"broken")
    with pytest.raises(FileError, match=r"none of 3 inputs could be read; a.png: cannot identify"):
        extract(brightness_network(), folder, tmp_path / "a.npz", batch_size=2)
    draw(folder / "c.png", 9)
    result = extract(brightness_network(), folder, tmp_path / "a.npz", batch_size=2)
    assert (result.n, len(result.unreadable)) == (1, 2)


def test_a_disk_that_fails_is_not_taken_for_damaged_images(tmp_path):
    def failing(row: int) -> str:
        raise OSError(5, "Input/output error")

    source = Source(tmp_path, ("a", "b"), failing, "text")
    with pytest.raises(FileError, match=r"cannot read a: .*Input/output error.*run the same command again"):
        extract(letters_network(), source, tmp_path / "a.npz")

    def vanished(row: int) -> str:
        raise FileNotFoundError(2, "No such file or directory")

    gone = Source(tmp_path / "unmounted", ("a", "b"), vanished, "text")
    with pytest.raises(FileError, match=r"cannot read a: .*run the same command again"):
        extract(letters_network(), gone, tmp_path / "a.npz")


def test_logits_that_cannot_be_used_are_refused(table, tmp_path):
    def overflowing(texts: list[str]) -> np.ndarray:
        logits = letters_network().logits(texts)
        logits[1, 3] = np.inf
        return logits

    with pytest.raises(LogitsError, match=r"letters gives NaN or infinite logits for row 1\. .*precision float32"):
        extract(letters_network(logits=overflowing), table, tmp_path / "a.npz")
    with pytest.raises(LogitsError, match=r"must give logits of shape \(64, 26\); got \(64, 25\)"):
        extract(letters_network(logits=lambda texts: letters_network().logits(texts)[:, 1:]), table, tmp_path / "b.npz")


def test_probabilities_are_noticed(table, tmp_path):
    def softmax(texts: list[str]) -> np.ndarray:
        e = np.exp(letters_network().logits(texts))
        return e / e.sum(1, keepdims=True)

    with pytest.warns(evicp.EvicpWarning, match="look like probabilities"):
        extract(letters_network(logits=softmax), table, tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"output": "a.parquet"}, FileError, "unknown suffix '.parquet'; known are .npz, .npy, .safetensors"),
        ({"output": "nowhere/a.npz"}, FileError, r"there is no directory .*nowhere\. Create it first"),
        ({"batch_size": 0}, InputError, "batch_size must be at least 1"),
        ({"workers": True}, InputTypeError, "workers must be a whole number"),
        ({"class_names": ["a"]}, InputError, "one name per class; got 1 names for 26"),
        ({"network": brightness_network()}, InputError, "brightness takes images; .* holds texts"),
    ],
)
def test_bad_options_end_before_any_work(table, tmp_path, monkeypatch, options, error, message):
    monkeypatch.chdir(tmp_path)
    arguments = {"network": letters_network(), "source": table, "output": "a.npz", **options}
    with pytest.raises(error, match=message):
        extract(**arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.csv"]


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"reading images needs pillow: pip install 'evicp\[extract\]'"):
        extract(brightness_network(), tmp_path, tmp_path / "a.npz")
    monkeypatch.setitem(sys.modules, "torch", None)
    for network, extra in {
        "resnet50": "extract",
        "timm:resnet50": "extract",
        "efficientnet-lite0": "efficientnet-lite",
        "huggingface:vit": "huggingface",
        str(tmp_path): "huggingface",
    }.items():
        with pytest.raises(MissingExtraError, match=rf"needs torch: pip install 'evicp\[{extra}\]'"):
            extract(network, tmp_path, tmp_path / "a.npz")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"needs onnxruntime: pip install 'evicp\[onnx\]'"):
        extract("model.onnx", tmp_path, tmp_path / "a.npz")


def test_the_bar_shows_rate_and_time_left_on_a_terminal_only(table, tmp_path, monkeypatch, capsys):
    extract(letters_network(), table, tmp_path / "a.npz")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    extract(letters_network(), table, tmp_path / "b.npz", batch_size=10)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100/100" in err
    assert "/s" in err
    assert "0:00:00" in err


SLOW_RUN = """
    import sys, time
    sys.path.insert(0, {tests!r})
    from test_extraction import letters_network
    from evicp.extraction import extract

    def slow(texts):
        time.sleep(0.01)
        return letters_network().logits(texts)

    extract(letters_network(logits=slow), {table!r}, {output!r}, batch_size=5, shard_size=20, workers=2)
"""


def test_killed_at_any_instant_and_run_again_gives_the_same_file(tmp_path):
    table = write_table(tmp_path / "texts.csv", 600)
    clean, output = tmp_path / "clean.npz", tmp_path / "killed.npz"
    extract(letters_network(), table, clean, batch_size=5, shard_size=20)
    code = textwrap.dedent(SLOW_RUN.format(tests=str(Path(__file__).parent), table=str(table), output=str(output)))
    parts, killed, rng = output.with_name("killed.npz.parts"), 0, np.random.default_rng(0)
    for _ in range(20):
        before = len(list(parts.glob("shard-*")))
        process = subprocess.Popen([sys.executable, "-c", code])
        while process.poll() is None and len(list(parts.glob("shard-*"))) < before + 6:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.06))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
        # Nothing done before is lost: the shards are there, or (killed while it tidied up) the file that joins them.
        assert output.exists() or len(list(parts.glob("shard-*"))) >= before + 6
    assert process.returncode == 0
    assert killed >= 3
    assert output.read_bytes() == clean.read_bytes()
    assert (tmp_path / "killed.npz.manifest.json").read_bytes() == (tmp_path / "clean.npz.manifest.json").read_bytes()
    assert not parts.exists()


def test_killed_between_the_last_shard_s_removal_and_the_folder_s_is_tidied_up_by_the_next_run(table, tmp_path):
    output, parts = tmp_path / "a.npz", tmp_path / "a.npz.parts"
    extract(letters_network(), table, output)
    before = output.read_bytes()
    parts.mkdir()
    (parts / "manifest.json").write_text("{}")
    extract(letters_network(), table, output)
    assert output.read_bytes() == before
    assert not parts.exists()


def test_import_evicp_does_not_import_extraction_or_torch():
    code = """if True:
        import sys, evicp
        assert not {"torch", "PIL", "evicp.extraction"} & set(sys.modules)
        evicp.extract
        assert not {"torch", "PIL", "transformers", "onnxruntime"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_beside_an_npy_output_are_not_replaced_unasked(table, tmp_path):
    np.save(tmp_path / "labels.npy", np.arange(1000))
    unlabelled, out = tmp_path / "unlabelled.csv", tmp_path / "logits.npy"
    unlabelled.write_text("text\nabc\nxyz\n")
    with pytest.raises(FileError, match=r"labels\.npy exists\. Use force"):
        extract(letters_network(), table, out)
    with pytest.raises(FileError, match=r"labels\.npy would be read with the new logits\.npy.*Move it away"):
        extract(letters_network(), unlabelled, out, force=True)
    assert len(np.load(tmp_path / "labels.npy")) == 1000
    assert not out.exists()
    extract(letters_network(), table, out, force=True)
    assert len(np.load(tmp_path / "labels.npy")) == 100
    assert extract(letters_network(), table, out).resumed == 100
