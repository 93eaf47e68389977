"""What a release needs: a README for the package index, workflows that call real targets, wheels for all systems."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "release"))

pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="not in a clone of the repository")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_of_the_index_has_whole_addresses_of_files_that_exist():
    import readme

    text = readme.with_addresses(read("README.md"), "v0.1.0")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10
    assert all(target.startswith("https://") for target in targets)
    own = [target.removeprefix(readme.repository()) for target in targets if target.startswith(readme.repository())]
    assert {path.split("/")[1] for path in own} == {"raw", "blob"}  # pictures and pages
    for path in own:
        assert (ROOT / path.split("/", 3)[3].partition("#")[0]).exists(), path


def test_a_link_to_nothing_stops_the_release():
    import readme

    with pytest.raises(SystemExit, match=r"links to docs/none\.md"):
        readme.with_addresses("[more](docs/none.md)", "v1")
    assert readme.with_addresses("[a](https://x.y) [b](#c)", "v1") == "[a](https://x.y) [b](#c)"


def test_workflows_call_targets_that_exist():
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):(?!=)", read("Makefile"), re.MULTILINE))
    called = set()
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        for job in jobs.values():
            assert job["timeout-minutes"]
            called |= {
                word for step in job["steps"] for word in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.M)
            }
    assert {"test", "test-base", "sdist", "wheels", "sbom"} <= called <= targets


def test_the_lowest_python_is_tested_and_its_interface_built():
    project = tomllib.loads(read("pyproject.toml"))
    lowest = project["project"]["requires-python"].removeprefix(">=")
    assert f'python: ["{lowest}"' in read(".github/workflows/tests.yml")
    assert f"cp{lowest.replace('.', '')}-*" in project["tool"]["cibuildwheel"]["build"]
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == f"cp{lowest.replace('.', '')}"


def test_cibuildwheel_knows_a_wheel_for_every_system():
    pytest.importorskip("cibuildwheel")
    for system, wanted in {
        "linux": {
            "cp311-manylinux_x86_64",
            "cp311-musllinux_x86_64",
            "cp311-manylinux_aarch64",
            "cp314t-manylinux_x86_64",
        },
        "macos": {"cp311-macosx_x86_64", "cp311-macosx_arm64"},
        "windows": {"cp311-win_amd64"},
    }.items():
        command = [
            sys.executable,
            "-m",
            "cibuildwheel",
            "--platform",
            system,
            "--archs",
            "all",
            "--print-build-identifiers",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert wanted <= set(done.stdout.split())


def test_the_image_runs_as_an_ordinary_user():
    users = re.findall(r"^USER (\w+)", read("Dockerfile"), re.MULTILINE)
    assert users
    assert users[-1] != "root"


def test_the_recipe_for_conda_has_what_the_package_needs(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    import recipe

    sdist = tmp_path / "evicp-1.2.3.tar.gz"
    sdist.write_bytes(b"an archive")
    made = yaml.safe_load(recipe.recipe(sdist))
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert made["context"]["version"] == "1.2.3"
    assert made["source"]["sha256"] == hashlib.sha256(b"an archive").hexdigest()
    assert [one.replace(" ", "") for one in made["requirements"]["run"]] == ["python", *project["dependencies"]]
    assert made["requirements"]["host"] == ["python", "pip", "scikit-build-core >=0.11"]
    assert made["build"]["python"]["entry_points"] == ["evicp = evicp.cli:main"]
    assert made["about"]["summary"] == project["description"]
    assert all((ROOT / name).exists() for name in made["about"]["license_file"])


def test_the_version_is_the_same_everywhere():
    import evicp

    assert f"version: {evicp.__version__}" in read("CITATION.cff")
    assert f"## {evicp.__version__}" in read("CHANGELOG.md")


def test_this_installation_passes_what_wheels_must():
    done = subprocess.run(
        [sys.executable, ROOT / "release" / "try_wheel.py"], capture_output=True, text=True, check=False
    )
    from evicp.kernels import level

    if level() == "none":
        assert "without compiled kernels" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
