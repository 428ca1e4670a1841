"""The bounds that pyproject.toml names are the versions of `make test-lowest`, and one PyTorch is named everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def required(*extras):
    """What the package and these extras require, the extras that they name in turn included."""
    of = [Requirement(line) for group in (PROJECT["dependencies"], *map(EXTRAS.get, extras)) for line in group]
    own, others = ([x for x in of if (x.name == "jattn") is mine] for mine in (True, False))
    return others + [x for each in own for x in required(*each.extras)]


def pinned(name):
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.lstrip().startswith("#")]


def lowest(requirement):
    (bound,) = (Version(x.version) for x in requirement.specifier if x.operator in (">=", "=="))
    return bound


def stray(requirements, pins):
    """Of what is required with a lower bound, the names that are not pinned to it."""
    versions = {pin.name: lowest(pin) for pin in pins}
    return sorted({x.name for x in requirements if x.name != "torch" and versions.get(x.name) != lowest(x)})


def test_the_lowest_versions_are_the_bounds_themselves():
    assert stray(required("dev", "parity"), pinned("lowest.txt")) == []


@pytest.mark.parametrize("other", ["jax==0.10.1", "jax==0.9", "not-jax==0.10"])
def test_a_bound_that_no_longer_is_the_lowest_version_is_noticed(other):
    pins = [pin for pin in pinned("lowest.txt") if pin.name != "jax"] + [Requirement(other)]
    assert stray(required("dev", "parity"), pins) == ["jax"]


def test_one_version_of_pytorch_is_named_everywhere():
    named = {lowest(x).public for x in required("bench", "parity") + pinned("torch.txt") if x.name == "torch"}
    assert len(named) == 1


def test_a_python_is_named_by_the_classifiers_from_the_lowest_on():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert f">={named[0]}" == PROJECT["requires-python"]
    minors = [int(version.split(".")[1]) for version in named]
    assert minors == list(range(minors[0], minors[0] + len(minors)))
