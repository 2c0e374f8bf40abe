"""What is packed comes out again, and nothing else does."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from fedilc.data.digests import tensors_digest
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import (
    HEADER_BYTES,
    DamagedError,
    TensorSchema,
    content_digest,
    is_whole,
    pack,
    pack_reply,
    pack_request,
    task_name,
    unpack,
    unpack_request,
)
from rest import good_reply, post, queue_of, remote, request_for

LARGEST_FLOAT = 3.4028234663852886e38


def like(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def exact(**named: Tensor) -> dict[str, TensorSchema]:
    """Tensors of one group that travel as they are."""
    return {f"group/{name}": TensorSchema(tensor) for name, tensor in named.items()}


def halved(**named: Tensor) -> dict[str, TensorSchema]:
    """Tensors of one group that travel as float16."""
    return {f"group/{name}": TensorSchema(tensor, as_float16=True) for name, tensor in named.items()}


def in_half(_group: str) -> bool:
    return True


def with_header(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


METADATA = {"__metadata__": {"fedilc": '{"scales": {}}'}}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_an_exact_wire_keeps_every_bit(values: list[float]) -> None:
    tensor = torch.tensor(values)
    found, about = unpack(pack({"group": {"w": tensor}}, {"round": 3}), exact(w=like(len(values))))
    assert found["group"]["w"].numpy().tobytes() == tensor.numpy().tobytes()
    assert about["round"] == 3


@given(
    st.lists(
        st.floats(-LARGEST_FLOAT, LARGEST_FLOAT, width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=20,
    )
)
def test_halves_are_off_by_2_to_the_minus_11_of_themselves_or_2_to_the_minus_40_of_the_largest(
    values: list[float],
) -> None:
    """A half has 11 bits from 2^-14 on and steps of 2^-24 below; the largest value is scaled to 2^15."""
    tensor = torch.tensor(values)
    found, _ = unpack(pack({"group": {"w": tensor}}, {}, in_half), halved(w=like(len(values))))
    exact = tensor.double()
    off = (found["group"]["w"].double() - exact).abs()
    rounding = 2.0**-149  # of the smallest float32 that there is
    assert bool(
        (off <= torch.maximum(2.0**-10.99 * exact.abs(), 2.0**-40 * exact.abs().max()) + rounding).all()
    )


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e-8, 1.0, 1e30])
def test_tiny_and_huge_gradients_survive_halves(size: float) -> None:
    tensor = size * torch.tensor([1.0, -0.5, 0.25, 1e-3])
    found, _ = unpack(pack({"group": {"w": tensor}}, {}, in_half), halved(w=like(4)))
    assert torch.equal(found["group"]["w"].sign(), tensor.sign())
    torch.testing.assert_close(found["group"]["w"], tensor, rtol=2.0**-10.9, atol=2.0**-149)


def test_halves_take_half_the_bytes_and_statistics_stay_exact() -> None:
    manifests = [queue_of(remote(hidden=[300], inputs=300), wire).manifest for wire in ("exact", "float16")]
    request = request_for(queue_of(remote(hidden=[300], inputs=300)))
    weights = tensors_digest(request.weights)
    for whole, half in (
        [pack_request(request, manifest, weights, True) for manifest in manifests],
        [pack_reply(good_reply(request, manifest, "a"), manifest) for manifest in manifests],
    ):
        assert len(half) < 0.505 * len(whole)
    asked = unpack_request(pack_request(request, manifests[1], weights, True), manifests[1], "", {})
    assert torch.equal(asked.request.tensors["variance"]["variance"], request.tensors["variance"]["variance"])
    statistics = OpenRequest(request_for(queue_of(remote()), "statistics"), queue_of(wire="float16").manifest)
    sent = good_reply(statistics.request, statistics.manifest, "a")
    found = statistics.read(pack_reply(sent, statistics.manifest), "a")
    assert torch.equal(found.tensors["variance"]["variance"], sent.tensors["variance"]["variance"])


def test_a_mix_of_types_comes_back_as_it_was() -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(3, dtype=torch.float64)}
    expected = halved(a=like(2), b=like(3, dtype=torch.float64))
    found, _ = unpack(pack({"group": tensors}, {}, in_half), expected)
    assert {name: tensor.dtype for name, tensor in found["group"].items()} == {
        "a": torch.float32,
        "b": torch.float64,
    }


WRONG: dict[str, bytes] = {
    "nothing": b"",
    "a size and no header": (100).to_bytes(8, "little"),
    "a size beyond everything": b"\xff" * 8 + b"{}",
    "no JSON": with_header(b"{"),
    "no object": with_header([1, 2]),
    "a number": with_header(7),
    "no UTF-8": with_header(b'{"\xff\xfe": 1}'),
    "deep nesting": with_header(b'{"__metadata__":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep nesting inside": with_header({"__metadata__": {"fedilc": "[" * 100_000}}),
    "an integer of a million digits": with_header(b'{"group/w":' + b"9" * 1_000_000 + b"}"),
    "no metadata": with_header({"group/w": entry()}),
    "metadata that are no object": with_header({"__metadata__": 3, "group/w": entry()}),
    "metadata of others": with_header({"__metadata__": {"format": "pt"}, "group/w": entry()}),
    "no scales": with_header({"__metadata__": {"fedilc": "{}"}, "group/w": entry()}),
    "a huge tensor": with_header({**METADATA, "group/w": entry(shape=[2**40], offsets=[0, 2**42])}),
    "a negative shape": with_header({**METADATA, "group/w": entry(shape=[-2])}),
    "a shape of text": with_header({**METADATA, "group/w": entry(shape=["2"])}),
    "a shape of thousands": with_header({**METADATA, "group/w": entry(shape=[1] * 10_000)}),
    "a float8": with_header({**METADATA, "group/w": entry("F8_E4M3", offsets=[0, 2])}, b"\0\0"),
    "a bool": with_header({**METADATA, "group/w": entry("BOOL", offsets=[0, 2])}, b"\0\0"),
    "a complex": with_header({**METADATA, "group/w": entry("C64", shape=[1])}),
    "an integer": with_header({**METADATA, "group/w": entry("I32")}),
    "a double": with_header({**METADATA, "group/w": entry("F64", shape=[1])}),
    "a half": with_header({**METADATA, "group/w": entry("F16", offsets=[0, 4])}, b"\0" * 4),
    "a type that does not exist": with_header({**METADATA, "group/w": entry("F1024")}),
    "a type that is no text": with_header({**METADATA, "group/w": entry(dtype=None)}),
    "an entry that is no object": with_header({**METADATA, "group/w": 5}),
    "offsets past the end": with_header({**METADATA, "group/w": entry(offsets=[0, 800])}),
    "offsets backwards": with_header({**METADATA, "group/w": entry(offsets=[8, 0])}),
    "offsets that leave a hole": with_header({**METADATA, "group/w": entry(offsets=[8, 16])}, b"\0" * 16),
    "more data than tensors": with_header({**METADATA, "group/w": entry()}, b"\0" * 800),
    "less data than tensors": with_header({**METADATA, "group/w": entry()}, b"\0" * 4),
    "another name": pack({"group": {"v": torch.zeros(2)}}, {}),
    "a tensor besides": pack({"group": {"w": torch.zeros(2), "v": torch.zeros(2)}}, {}),
    "no tensor": pack({}, {}),
    "two dimensions": pack({"group": {"w": torch.zeros(2, 1)}}, {}),
    "a NaN": pack({"group": {"w": torch.tensor([0.0, float("nan")])}}, {}),
    "an infinity": pack({"group": {"w": torch.tensor([0.0, -float("inf")])}}, {}),
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_whatever_is_not_the_expected_tensor_is_refused_in_a_short_sentence(body: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        unpack(body, exact(w=like(2)))
    assert len(str(refused.value)) < 400


def test_a_name_that_is_there_twice_gives_no_other_tensor_than_expected() -> None:
    """Readers may disagree on which of the two counts."""
    text = json.dumps(METADATA)[:-1].encode()
    integer, expected = (json.dumps(value).encode() for value in (entry("I64", [1]), entry()))
    for first, second in ((integer, expected), (expected, integer)):
        body = with_header(text + b', "group/w": ' + first + b', "group/w": ' + second + b"}")
        with contextlib.suppress(ProtocolError):
            found, _ = unpack(body, exact(w=like(2)))
            assert (found["group"]["w"].dtype, found["group"]["w"].shape) == (torch.float32, (2,))


def test_a_header_larger_than_its_tensors_need_is_not_even_parsed() -> None:
    header = json.dumps(METADATA | {"group/w": entry()}).encode()
    body = with_header(header + b" " * 2 * HEADER_BYTES)
    with pytest.raises(ProtocolError, match="header is too large"):
        unpack(body, exact(w=like(2)))


@pytest.mark.parametrize("scale", [None, -1.0, True, "1", [1], 1e301, 10**400, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused(scale: object) -> None:
    about = json.dumps({"scales": {"group/w": scale}})
    body = save({"group/w": torch.ones(2).half()}, {"fedilc": about})
    with pytest.raises(ProtocolError):
        unpack(body, halved(w=like(2)))


def test_a_scale_that_overflows_is_an_infinity_and_refused() -> None:
    body = save({"group/w": torch.ones(2).half()}, {"fedilc": json.dumps({"scales": {"group/w": 1e200}})})
    with pytest.raises(ProtocolError, match="infinity"):
        unpack(body, halved(w=like(2)))


def test_halves_are_refused_where_the_wire_is_exact_and_the_other_way_round() -> None:
    tensor = {"group": {"w": torch.ones(2)}}
    for body, agreed in ((pack(tensor, {}, in_half), exact), (pack(tensor, {}), halved)):
        with pytest.raises(ProtocolError, match="was expected"):
            unpack(body, agreed(w=like(2)))


@given(st.binary(max_size=200), st.integers(0, 10_000))
def test_a_digest_tells_a_whole_body_from_a_damaged_one(body: bytes, place: int) -> None:
    digest = content_digest(body)
    assert is_whole(content_digest(body), digest)
    assert is_whole(content_digest(body), None)
    assert not is_whole(content_digest(body + b"x"), digest)
    if body:
        place %= len(body)
        damaged = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert not is_whole(content_digest(damaged), digest)


def test_a_task_is_named_by_all_that_its_answer_depends_on() -> None:
    queue = queue_of()
    names = set()
    for step in ("statistics", "matched-update", "evaluate"):
        for round_ in (1, 2):
            for fill in (0.5, 0.25):
                request = request_for(queue, step, round_, fill)
                names.add(task_name(request, queue.manifest.hash, tensors_digest(request.weights)))
    assert len(names) == 12
    request = request_for(queue)
    weights = tensors_digest(request.weights)
    again = task_name(request_for(queue), queue.manifest.hash, weights)
    assert task_name(request, queue.manifest.hash, weights) == again
    assert task_name(request, "another run", weights) != again


class TestTheSiloReads:
    """A coordinator is not trusted either."""

    def task(self, **changes: Any) -> bytes:
        queue = queue_of()
        body = post(queue).body("")
        assert body is not None
        size = int.from_bytes(body[:8], "little")
        header = json.loads(body[8 : 8 + size])
        about = json.loads(header["__metadata__"]["fedilc"]) | changes
        header["__metadata__"] = {"digest": "0" * 64, "fedilc": json.dumps(about)}
        blank = with_header(header, body[8 + size :])
        return blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1)

    def test_a_task_as_it_was_asked(self) -> None:
        queue = queue_of()
        request = request_for(queue)
        weights = tensors_digest(request.weights)
        body = pack_request(request, queue.manifest, weights, True)
        asked = unpack_request(body, queue.manifest, "", {})
        assert (asked.request.step, asked.request.round) == ("matched-update", 1)
        assert asked.request.silos == ("a", "b")
        assert tensors_digest(asked.request.weights) == asked.weights_digest == weights
        assert asked.request.numbers == {"penalty_weight": 1.0}
        assert torch.equal(
            asked.request.tensors["variance"]["variance"], request.tensors["variance"]["variance"]
        )

    def test_a_task_without_weights_only_if_it_has_those_of_that_name(self) -> None:
        queue = queue_of()
        request = request_for(queue)
        weights = tensors_digest(request.weights)
        short = pack_request(request, queue.manifest, weights, False)
        assert unpack_request(short, queue.manifest, weights, request.weights).request.weights
        with pytest.raises(ProtocolError, match="lacks the tensor"):
            unpack_request(short, queue.manifest, "other weights", request.weights)

    def test_other_weights_of_the_same_round_have_another_version(self) -> None:
        """The model keeps what it has while the version stays."""
        queue = queue_of()
        versions = set()
        for fill in (0.5, 0.25):
            request = request_for(queue, fill=fill)
            body = pack_request(request, queue.manifest, tensors_digest(request.weights), True)
            versions.add(unpack_request(body, queue.manifest, "", {}).request.version)
        assert len(versions) == 2

    @pytest.mark.parametrize(
        "changes",
        [
            {"step": "import os"},
            {"step": "statistics"},
            {"round": 0},
            {"round": 4},
            {"round": 10**30},
            {"silos": ["a", "stranger"]},
            {"silos": "a"},
            {"numbers": {"penalty_weight": -1.0}},
            {"numbers": {"penalty_weight": 1e300}},
            {"numbers": {"penalty_weight": None}},
            {"numbers": {"penalty_weight": 1.0, "more": 1.0}},
            {"numbers": {}},
            {"numbers": None},
            {"task": "x" * 65},
            {"weights": 7},
            {"code": "print()"},
        ],
        ids=str,
    )
    def test_nothing_else_than_a_task_of_this_run(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ProtocolError) as found:
            unpack_request(self.task(**changes), queue_of().manifest, "", {})
        assert not isinstance(found.value, DamagedError)

    def test_the_unchanged_task_is_read(self) -> None:
        assert unpack_request(self.task(), queue_of().manifest, "", {}).request.round == 1

    def test_no_mean_variance_of_another_size(self) -> None:
        wide = queue_of(remote(hidden=[5]))
        narrow = queue_of(remote(hidden=[4]))
        mixed = replace(request_for(narrow), tensors=request_for(wide).tensors)
        body = pack_request(mixed, narrow.manifest, "name", True)
        with pytest.raises(ProtocolError, match="variance"):
            unpack_request(body, narrow.manifest, "", {})
