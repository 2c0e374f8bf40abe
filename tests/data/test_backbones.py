"""Backbones by name and of one's own: what identifies them, how pictures become features, what is refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_backbone import FEATURES, write_module
from torch import nn

from fedilc.algorithms.user_code import find_function
from fedilc.data.backbones import BACKBONES, BATCH, BackboneFacts, find_backbone, register, require_same
from fedilc.errors import ConfigError, ModelError, WrongTypeError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("tiny_eye", None)
    return write_module(tmp_path)


def test_features_are_those_of_the_network_standardised_per_picture(own: str) -> None:
    backbone = find_backbone(own)
    pictures = torch.rand(BATCH + 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = backbone.network.network((pictures - 0.5) / 0.5).double()
    wanted = (plain - plain.mean(1, keepdim=True)) / plain.std(1, correction=0, keepdim=True)
    found = backbone.all_features(pictures)
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
    assert (backbone.size, found.shape) == (8, (BATCH + 3, FEATURES))


def test_the_features_of_a_picture_do_not_depend_on_the_others(own: str) -> None:
    backbone = find_backbone(own)
    pictures = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([backbone.features(one) for one in pictures.split(1)])
    assert torch.equal(alone, backbone.features(pictures))


def test_the_digest_is_of_weights_and_code(own: str, tmp_path: Path) -> None:
    digest = find_backbone(own).digest
    same = write_module(tmp_path, "tiny_copy")
    other = write_module(tmp_path, "tiny_other", scale=2.0)
    assert find_backbone(same).digest == digest
    assert find_backbone(other).digest != digest
    Path("tiny_copy.py").write_text(Path("tiny_copy.py").read_text() + "# changed\n")
    assert find_backbone(same).digest != digest


def test_a_changed_backbone_is_refused_and_a_file_never_names_code(own: str, tmp_path: Path) -> None:
    facts = find_backbone(own).facts(8)
    assert require_same(facts, own, "the run").digest == facts.digest
    with pytest.raises(
        ConfigError, match=r"the run takes features of the backbone .* name it with `backbone`"
    ):
        require_same(facts, None, "the run")
    other = write_module(tmp_path, "tiny_other", scale=3.0)
    with pytest.raises(
        ConfigError, match=r"but 'tiny_other:build' has [0-9a-f]{16} here; use the same weights"
    ):
        require_same(facts, other, "the run")


def test_features_that_are_no_numbers_are_the_backbones_fault(own: str, tmp_path: Path) -> None:
    backbone = find_backbone(write_module(tmp_path, "tiny_infinite", scale=1e39))
    with pytest.raises(ModelError, match=r"tiny_infinite:build' returned a NaN or an infinity as a feature"):
        backbone.features(torch.rand(1, 3, 8, 8))


def test_a_backbone_can_be_registered(own: str) -> None:
    register("tiny", find_function(own, "backbone"), "six filters", "2")
    try:
        assert BACKBONES.summary("tiny") == "six filters"
        facts = find_backbone("tiny").facts(8)
        assert facts.features == FEATURES
        assert require_same(facts, None, "the run").name == "tiny"
    finally:
        BACKBONES.unregister("tiny")
    with pytest.raises(WrongTypeError, match="give a function that builds it"):
        register("tiny", 3)  # type: ignore[arg-type]


def test_what_is_no_backbone_is_one_sentence(own: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="backbone 'efficientnet-lite' is unknown; did you mean"):
        find_backbone("efficientnet-lite")
    (tmp_path / "no_eye.py").write_text(
        "from torch import nn\ndef number():\n    return 3\n"
        "class Grey(nn.Flatten):\n    mean = (0.5,)\ndef grey():\n    return Grey()\n"
    )
    with pytest.raises(ConfigError, match=r"returned int, not a torch\.nn\.Module"):
        find_backbone("no_eye:number")
    with pytest.raises(ConfigError, match="needs a mean and a std of three colours"):
        find_backbone("no_eye:grey")
    with pytest.raises(ModelError, match="cannot take pictures of 2 x 2 pixels"):
        find_backbone(own).facts(2)


@pytest.mark.skipif(find_spec("efficientnet_lite_pytorch") is None, reason="fedilc[images] is not installed")
def test_efficientnet_lite0_has_its_weights_and_sees() -> None:
    backbone = find_backbone("efficientnet-lite0")
    facts = backbone.facts(96)
    assert (backbone.size, facts.features) == (224, 1280)
    assert isinstance(facts, BackboneFacts)
    assert not any(parameter.requires_grad for parameter in backbone.network.parameters())
    assert not any(module.training for module in backbone.network.modules() if isinstance(module, nn.Module))
    up = torch.linspace(0, 1, 96).repeat(3, 96, 1)
    pictures = torch.stack([up, up * 0.9, torch.eye(96).repeat(3, 1, 1)])
    one, alike, other = backbone.features(pictures)
    assert torch.dot(one, alike) > 2 * torch.dot(one, other).abs()
