"""A SuperLink and three SuperNodes on loopback, with TLS and node authentication, as the docs say."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from certificates import make_certificates
from needs import need
from stage import play, require_alone

from fedilc import Federation, Silo, train
from fedilc.config import read_experiment
from fedilc.models import build_model
from fedilc.runtimes.flower.template import new_app
from fedilc.storage.run_folder import RunFolder

NAMES = ("north", "middle", "south")
EXPERIMENT = """
algorithm = "fishr-inter-geo"
rounds = 2
learning_rate = 1e-2
penalty_weight = 5.0

[data]
source = "remote"
silos = ["north", "middle", "south"]
inputs = [5]

[model]
hidden = [8]
"""
TIMEOUT_SECONDS = 300.0


def make_silo(partition_id: int) -> Silo:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(12, 5, generator=generator)
    y = (x[:, 0] + 0.3 * partition_id > 0).float()
    return Silo(f"silo-{partition_id}", x[:8], y[:8], x[8:], y[8:])


def write_app(folder: Path) -> None:
    """The command's app with `make_silo` filled in, and a node's own function that leaves a trace."""
    (folder / "study.toml").write_text(EXPERIMENT)
    assert new_app(folder / "app", str(folder / "study.toml")) == len(NAMES)
    function = f"import torch\nfrom fedilc import Silo\n\n{inspect.getsource(make_silo)}\n"
    client = (folder / "app" / "client_app.py").read_text()
    client = client.replace("\napp = ", f"\n{function}\napp = ")
    (folder / "app" / "client_app.py").write_text(client)
    trace = "from pathlib import Path\nPath('asked').write_text('the node imported its own function')\n"
    (folder / "ward.py").write_text(trace + function)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_run_whose_node_dies_ends_in_time_and_a_second_start_finishes_it(tmp_path: Path) -> None:
    require_alone()
    need("ssh-keygen", "openssh-client", "makes the nodes' keys")
    tls = make_certificates(tmp_path / "tls")
    write_app(tmp_path)
    out = tmp_path / "run"
    paths = {"ca": str(tls.authority), "cert": str(tls.certificate), "key": str(tls.key), "out": str(out)}
    told = play("deployment_story.py", tmp_path, 2900, timeout=TIMEOUT_SECONDS, **paths)

    assert told["stranger_ended"] != 0
    assert "No SuperNode found with the given public key" in (tmp_path / "superlink.log").read_text()

    status, rounds, log = told["first"]
    assert (status, rounds) == ("finished:failed", 1), log
    assert "silo 'middle' is lost to round 2" in log
    assert "fewer than min_silos=3; bring them back or lower min_silos" in log
    assert told["noticed_after"] < TIMEOUT_SECONDS + 60

    status, rounds, log = told["second"]
    assert (status, rounds) == ("finished:completed", 2), log
    assert "and continues after round 1 of 2" in log
    assert (tmp_path / "asked").exists()

    settings, _ = read_experiment(str(tmp_path / "study.toml"))
    silos = [make_silo(place) for place in range(len(NAMES))]
    model = build_model("mlp", [5], 1, settings.seed, hidden=[8])
    expected = train(Federation("study", silos), model, settings.algorithm, **settings.options()).model
    for name, parameter in expected.named_parameters():
        assert torch.equal(RunFolder(out).load().weights[name], parameter)
