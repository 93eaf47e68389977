"""The pages of rules: what was guaranteed, what was observed, as text that cannot become anything else."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import evicp
from evicp.calibration.verification import compared_with
from evicp.cli.rules import read_rule
from evicp.errors import InputError
from evicp.io.json_text import plain

K = 4
HOSTILE = ["<script>alert(1)</script>", "</title><img src=x>", "{{facts}}", "a & \"b\" 'c'"]


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(size=(n, K)) * 1.5 + 3 * np.eye(K)[labels], labels


class Parsed(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def rules() -> dict[str, tuple[evicp.RiskControl | evicp.Selective | evicp.MultiLabel, np.ndarray]]:
    logits, labels = draw(1500)
    new = draw(600, 1)[1]
    several = np.eye(K, dtype=bool)[labels] | np.eye(K, dtype=bool)[(labels + 1) % K]
    return {
        "risk": (evicp.control_risk(logits, labels, risk=0.2, class_costs=[2, 1, 1, 1], class_names=HOSTILE), new),
        "selective": (evicp.selective(logits, labels, error=0.1, by="class", class_names=HOSTILE), new),
        "multilabel": (
            evicp.multilabel(logits, several, missed=0.2, class_names=HOSTILE),
            np.eye(K, dtype=bool)[new] | np.eye(K, dtype=bool)[(new + 1) % K],
        ),
    }


@pytest.mark.parametrize("name", ["risk", "selective", "multilabel"])
def test_a_page_holds_the_certificate_and_what_was_observed(name: str, tmp_path: Path) -> None:
    rule, truth = rules()[name]
    logits = draw(600, 1)[0]
    page = rule.report(logits, truth, title=HOSTILE[0], author=HOSTILE[1], note=HOSTILE[2])
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Parsed(text)
    assert not {"script", "img", "link", "iframe"} & set(found.tags)
    assert found.links == ["#main"]
    for line in (
        *HOSTILE[:3],
        repr(rule),
        rule.certificate().caveat,
        *(value for _, value in rule.certificate().facts),
    ):
        assert line in found.text
    observed = str(rule.evaluate(logits, truth)).partition("\n")[0]
    assert observed[1:] in found.text
    assert found.tags.count("svg") == len([section for section in page.sections if section.picture]) > 0
    assert page.kept
    assert '<p id="verdict" class="">' in text
    assert "<iframe" in page._repr_html_()
    assert not rule.report(-logits, truth).kept
    assert 'class="off"' in rule.report(-logits, truth).to_html()
    with pytest.raises(InputError, match="groups are only taken by a rule by group"):
        rule.report(logits, truth, groups=np.zeros(600, int))


def test_curves_are_those_of_other_risks() -> None:
    rule, truth = rules()["risk"]
    logits = draw(600, 1)[0]
    curve = rule.curve(logits, truth)
    assert curve.asked.tolist() == [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6]
    for asked, loss, size in zip(curve.asked, curve.loss, curve.size, strict=True):
        found = rule.at(float(asked)).evaluate(logits, truth)
        assert (loss, size) == (found.mean_loss, found.mean_size)
    assert np.all(np.diff(curve.size) <= 0)
    assert len(curve.table[1]) == 7
    few = evicp.control_risk(*draw(300), risk=0.95).curve(*draw(100))
    assert few.asked.max() == 0.95  # its own risk, however near to the largest loss


def test_answers_are_judged_in_each_group() -> None:
    """All answers together agree, and those of one group do not."""
    logits, labels = draw(6000, 2)
    groups = np.arange(6000) % 3
    rule = evicp.selective(logits[:4000], labels[:4000], error=0.1, by=groups[:4000])
    found = rule.evaluate(logits[4000:], labels[4000:], groups=groups[4000:])
    answered = rule.predict(logits[4000:], groups=groups[4000:]).sizes > 0
    wrong = answered & (logits[4000:].argmax(1) != labels[4000:])
    expected = (
        [(answered & (groups[4000:] == g)).sum() for g in range(3)],
        [(wrong & (groups[4000:] == g)).sum() for g in range(3)],
    )
    assert [group.answered for group in found.groups] == expected[0]
    assert [group.wrong for group in found.groups] == expected[1]
    assert found.kept
    assert sum(expected[0]) == found.answered
    top = logits[4000:].argmax(1)
    one_wrong = np.where(
        (groups[4000:] == 1) & (np.arange(2000) % 12 == 0), (top + 1) % K, top
    )  # a quarter of the group
    broken = rule.evaluate(logits[4000:], one_wrong, groups=groups[4000:])
    assert broken.interval[0] <= 0.1
    assert not broken.kept
    assert "is MORE, in 1, than 0.1" in str(broken)
    (section,) = broken.sections
    assert section.table[1][0][0] == "1"


@pytest.mark.parametrize("name", ["risk", "selective", "multilabel"])
def test_a_certificate_belongs_to_its_file(name: str, tmp_path: Path) -> None:
    rule, _ = rules()[name]
    rule.save(tmp_path / "rule.safetensors")
    stated = json.loads(rule.certificate().to_json())
    assert stated["checksum"] == hashlib.sha256((tmp_path / "rule.safetensors").read_bytes()).hexdigest()
    made = plain(read_rule(str(tmp_path / "rule.safetensors")).certificate().to_dict())
    assert compared_with(made, stated).holds
    assert compared_with(made, stated | {"n": 3}).differences == (("n", 3, 1500),)
    assert not compared_with(made, stated | {"checksum": "0" * 64}).same_calibration
    with pytest.raises(InputError, match="must have 'checksum'"):
        compared_with(made, {})
