"""Certificates on the page of an audit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from audit_fixtures import Plain, bars, taught
from audit_runs import evaluation, run
from robattr.attacks import simple_gradient
from robattr.certificates import Challenge, Examples, Smoothing, attack_certificates, certify
from robattr.errors import CheckpointError
from robattr.evaluation import OutputDir
from robattr.evaluation.gallery import Gallery
from robattr.reporting.audit_sections import certified_section
from robattr.reporting.certified import CertificateResults, read_certificates, rows
from robattr.reporting.figures import certified_maps
from robattr.reporting.html import page
from robattr.reporting.run_results import read_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of six examples, and an attack on three of them beside these."""
    torch.manual_seed(0)
    place, net = tmp_path_factory.mktemp("certificates"), taught(Plain(), *bars(30))
    x, y = bars(6)
    examples = Examples(net, simple_gradient(), x, y, list(range(6)), Smoothing(0.1, 200, 0.1, 0.1))
    found = certify(examples, [0.01, 0.03], out=OutputDir(place))
    attack_certificates(examples, found, 0.01, Challenge(0.01, steps=1, draws=2), out=OutputDir(place))
    return place


def gallery(ids: list[int], size: int = 8) -> Gallery:
    n, none = len(ids), np.zeros((len(ids), 1))
    image = np.zeros((n, 1, size, size), dtype=np.uint8)
    return Gallery(np.array(ids), np.zeros(n), image, image[:, None], image[:, 0], image, none, none, none, np.ones(1))


def test_a_folder_of_certificates_is_read_without_its_attacks(folder: Path) -> None:
    (found,) = read_certificates(folder)
    assert [r["id"] for r in found.records] == list(range(6))
    assert [row["radius"] for row in found.summary["radii"]] == [0.01, 0.03]
    certified = found.bounds.at(0.01)
    assert found.summary["radii"][0]["inside"]["value"] == pytest.approx(
        certified.inside_share[certified.answer].mean()
    )
    assert read_certificates(folder / "nothing") == ()


def test_an_edited_summary_or_record_is_refused(folder: Path, tmp_path: Path) -> None:
    for name, was, now in (
        ("sg.json", '"radius": 0.01', '"radius": 0.5'),
        ("sg.jsonl", '"correct": true', '"correct": false'),
    ):
        copied = tmp_path / name
        shutil.copytree(folder, copied)
        text = (copied / name).read_text()
        assert was in text
        (copied / name).write_text(text.replace(was, now))
        with pytest.raises(CheckpointError, match=r"it was edited|the records are not those"):
            read_certificates(copied)


def test_certificates_are_recognised_without_a_run_and_without_their_records(folder: Path, tmp_path: Path) -> None:
    for given in (folder, folder / "sg.json"):
        with pytest.raises(CheckpointError, match=r"a record, got .*json, a summary of certificates: the same"):
            read_runs([given])
    shutil.copy(folder / "sg.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"\(sg.jsonl is missing beside it\): delete it, and certify again"):
        read_certificates(tmp_path)


def test_the_section_says_what_is_certified_and_of_what(folder: Path) -> None:
    found = read_certificates(folder)
    audited = replace(run(evaluation("strict", "sg", 0.9)), certificates=found)
    (section,) = certified_section(audited)
    assert [row[0] for row in section.rows] == ["sg · r = 0.01", "sg · r = 0.03"]
    assert rows(found) == section.rows
    text = " ".join(section.sentences)
    for words in ("with probability at least 0.9,", "smoothed explanations", "of 255 grey levels", "the top 6"):
        assert words in text
    html = page([audited])
    assert html.index("What no attack can move") < html.index("Class by class")
    assert certified_section(run(evaluation("strict", "sg", 0.9))) == []


def test_the_figure_marks_pixels_of_the_examples_that_have_an_image(folder: Path) -> None:
    (found,) = read_certificates(folder)
    figure = certified_maps(found, gallery([1, 4, 9]))
    assert figure is not None
    assert f"vote map, {found.summary['map']}" in [axis.get_ylabel() for axis in figure.axes]
    assert len(figure.axes) == 3 * 2  # image, votes and marks of examples 1 and 4
    shades = figure.axes[4].images[0].get_array()
    inside = found.bounds.at(found.shown_radius).inside[1].reshape(8, 8)
    teal = np.isclose(shades, np.array([0x12, 0xA5, 0x94]) / 255).all(axis=2)
    np.testing.assert_array_equal(teal, inside)
    assert certified_maps(found, gallery([9])) is None
    assert certified_maps(found, gallery([1], size=4)) is None


def test_the_figure_shows_the_largest_radius_at_which_something_is_certified(folder: Path) -> None:
    (found,) = read_certificates(folder)

    def with_shares(*shares: float | None) -> CertificateResults:
        radii = [{"radius": 0.1 * (i + 1), "inside": {"value": share}} for i, share in enumerate(shares)]
        return replace(found, summary={**found.summary, "radii": radii})

    assert with_shares(0.5, 0.2, 0.01).shown_radius == 0.2
    assert with_shares(0.01, None).shown_radius == 0.1
