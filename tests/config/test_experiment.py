"""An experiment is one TOML file: what it may say, and each sentence about what it may not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from fedilc import Algorithm, Federation, algorithms, train
from fedilc.algorithms import find_algorithm
from fedilc.config import parse_experiment, read_experiment, shipped_experiments
from fedilc.data.embedded_data import color_digits
from fedilc.errors import ConfigError

TOML = """
rounds = 4
learning_rate = 0.1
[data]
source = "color-digits"
"""


def experiment(tmp_path: Path, text: str = TOML, *changes: str) -> Any:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_experiment(str(path), changes)[0]


@pytest.mark.parametrize("name", shipped_experiments())
def test_a_shipped_experiment_is_valid_and_describes_itself(name: str) -> None:
    settings, folder = read_experiment(name)
    assert settings.name == name
    assert settings.summary
    assert settings.algorithm in algorithms.PAPER
    assert (folder / f"{name}.toml").is_file()


def test_the_embedded_experiment_is_shipped_and_builds_its_federation_and_network() -> None:
    settings, folder = read_experiment("color-digits")
    federation = settings.data.build(settings.seed, folder)
    network = settings.model.build(federation, settings.seed)
    assert isinstance(federation, Federation)
    assert isinstance(network, nn.Module)
    assert [tuple(layer.weight.shape) for layer in network if isinstance(layer, nn.Linear)] == [
        *((128, 128), (128, 128), (1, 128))
    ]


def test_reading_an_experiment_needs_no_torch() -> None:
    code = "import sys, fedilc.config as c; c.read_experiment('color-digits'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_experiment_takes_its_name_from_its_file_unless_it_has_one(tmp_path: Path) -> None:
    assert experiment(tmp_path).name == "mine"
    assert experiment(tmp_path, "name = 'ours'\n" + TOML).name == "ours"


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    settings = experiment(tmp_path)
    assert (settings.rounds, settings.learning_rate) == (4, 0.1)
    assert (settings.algorithm, settings.seed) == ("fishr-inter-geo", 0)
    assert (settings.penalty, settings.penalty_weight) == (None, 1.0)
    assert settings.data.flips == [0.15, 0.30, 0.45, 0.60, 0.75]
    assert settings.model.name == "mlp"


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        ("rounds=7", "rounds", 7),
        (" rounds = 7 ", "rounds", 7),
        ("learning_rate=1e-3", "learning_rate", 1e-3),
        ("algorithm=fedsgd", "algorithm", "fedsgd"),
        ('algorithm="fedsgd"', "algorithm", "fedsgd"),
        ("environment_size=none", "environment_size", None),
        ("model.name=cnn", "model.name", "cnn"),
        ("model.hidden=[8, 4]", "model.hidden", [8, 4]),
        ("data.flips=[0.2]", "data.flips", [0.2]),
        ("data.test_flip=1.0", "data.test_flip", 1.0),
    ],
)
def test_any_setting_can_be_changed_by_its_dotted_name(
    tmp_path: Path, change: str, key: str, value: object
) -> None:
    found = experiment(tmp_path, TOML, "environment_size=3", change)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_the_last_change_of_a_setting_counts(tmp_path: Path) -> None:
    assert experiment(tmp_path, TOML, "rounds=7", "rounds=9").rounds == 9


def test_a_string_that_holds_an_equals_sign_stays_whole(tmp_path: Path) -> None:
    assert experiment(tmp_path, TOML, "summary=a=b").summary == "a=b"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("rounds", "the change 'rounds' is not of the form key=value"),
        ("=3", "the change '=3' is not of the form key=value"),
        ("rounds.more=3", "the change 'rounds.more=3' is not valid: 'rounds' is not a section"),
        ("learning_rat=1", "the key 'learning_rat' is unknown; did you mean 'learning_rate'"),
        ("modle.name=cnn", "the key 'modle' is unknown; did you mean 'model'"),
        ("data.flipps=[]", "the key 'data.flipps' is unknown; did you mean 'flips'"),
        ("model.widths=[3]", "the key 'model.widths' is unknown; choose from name, hidden"),
        ("rounds=0", "rounds=0 is not valid: .* greater than or equal to 1"),
        ("rounds=many", "rounds='many' is not valid: .* integer"),
        ("rounds=1.5", "rounds=1.5 is not valid: "),
        ("learning_rate=0", "learning_rate=0 is not valid: .* greater than 0"),
        ("learning_rate=nan", "learning_rate=nan is not valid: .* finite"),
        ("penalty_weight=-1", "penalty_weight=-1 is not valid"),
        ("agreement=2", "agreement=2 is not valid"),
        ("min_side=0", "min_side=0 is not valid: .* greater than or equal to 1"),
        ("seed=-1", "seed=-1 is not valid"),
        ("zeros=ignored", "zeros='ignored' is not valid: .*'ignore', 'strict' or 'authors'"),
        ("algorithm=fedsdg", "algorithm 'fedsdg' is unknown; did you mean 'fedsgd'"),
        ("data.source=color-digit", "data.source='color-digit' is unknown; did you mean 'color-digits'"),
        ("data=5", r"the experiment has no \[data\] section"),
        ("data={}", "the key 'data.source' is missing; choose from color-digits, "),
        ("model.hidden=[1.5]", "model.hidden.0=1.5 is not valid"),
        ("model.hidden=[8, 0]", "model.hidden.1=0 is not valid: .* greater than 0"),
        ("model.hidden=[-1]", "model.hidden.0=-1 is not valid: .* greater than 0"),
        ("model=cnn", "model='cnn' is not a section; set its keys, as in model.name="),
        ("model=3", "model=3 is not a section; set its keys, as in model.name="),
    ],
)
def test_a_change_that_makes_no_sense_is_one_sentence_that_names_it(
    tmp_path: Path, change: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        experiment(tmp_path, TOML, change)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds = \n", "mine.toml is not valid TOML: .*line 1"),
        ("rounds = 1\nrounds = 2", "mine.toml is not valid TOML: "),
        (f"rounds = {'[' * 100_000}", "mine.toml is not valid TOML: "),
        ("rounds = 1", r"no \[data\] section; add one with source"),
        ("[data]\nflips = [0.1]", "the key 'data.source' is missing; choose from color-digits, "),
        ("rounds = 1\n[data]\nsource = 'color-digits'", "the key 'learning_rate' is missing; add it"),
        ("[data]\nsource = 'files'", "the key 'data.silos' is missing; add it"),
        (TOML + "silos = 'x.csv'", "the key 'data.silos' is unknown"),
        (TOML + "[optimiser]\nname = 'adam'", "the key 'optimiser' is unknown; did you mean 'optimizer'"),
        (TOML + "[optimizer]\nname = 'adam'", "optimizer=.* is not valid: .* string"),
    ],
)
def test_a_file_that_makes_no_sense_is_one_sentence_that_names_it(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        experiment(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"mine.toml is not valid TOML"):
        read_experiment(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("color-digit", "experiment 'color-digit' is unknown; did you mean 'color-digits'"),
        ("qqq", "experiment 'qqq' is unknown; choose from .*color-digits"),
        ("gone.toml", "gone.toml cannot be read: No such file"),
    ],
)
def test_an_experiment_that_is_not_there_is_named(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_experiment(name)


def test_an_experiment_can_be_given_as_dictionaries() -> None:
    values = {"rounds": 1, "learning_rate": 0.1, "data": {"source": "color-digits", "test_flip": 0.5}}
    assert parse_experiment(values).data.test_flip == 0.5
    assert values["data"] == {"source": "color-digits", "test_flip": 0.5}


def test_the_catalogue_holds_the_papers_six_algorithms_as_three_choices() -> None:
    assert {name: algorithms.get(name).parts for name in algorithms.PAPER} == {
        "fedsgd": {"inter": "mean"},
        "geometric": {"inter": "geometric"},
        "fedcurv": {"inter": "mean", "penalty": "fishr"},
        "fishr-intra-arith": {"intra": "mean", "inter": "mean", "penalty": "fishr"},
        "fishr-inter-geo": {"inter": "geometric", "penalty": "fishr"},
        "fishr-intra-geo": {"intra": "geometric", "inter": "mean", "penalty": "fishr"},
    }
    for name in algorithms.PAPER:
        assert algorithms.get(name).describe().keys() == {"intra", "inter", "penalty"}


def test_an_algorithm_of_ones_own_is_called_custom() -> None:
    own = Algorithm(intra="geometric", inter="geometric", penalty="fishr")
    assert find_algorithm(own) == ("custom", own)
    assert find_algorithm(algorithms.get("fedcurv"))[0] == "fedcurv"


def test_a_penalty_that_is_unknown_is_refused() -> None:
    federation, said = color_digits(0), "penalty 'fisher' is unknown; did you mean 'fishr'"
    with pytest.raises(ConfigError, match=said):
        train(federation, nn.Linear(1, 1), Algorithm(penalty="fisher"), rounds=1, learning_rate=0.1)
    with pytest.raises(ConfigError, match=said):
        train(federation, nn.Linear(1, 1), penalty="fisher", rounds=1, learning_rate=0.1)


@pytest.mark.parametrize(("written", "changed"), [("weights", "silo_weights"), ("silo_weights", "weights")])
def test_a_change_replaces_silo_weights_under_either_name(
    written: str, changed: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        f'rounds = 1\nlearning_rate = 0.1\nalgorithm = "fedsgd"\n{written} = "examples"\n'
        '[data]\nsource = "color-digits"\n'
    )
    assert read_experiment(str(path))[0].silo_weights == "examples"
    assert read_experiment(str(path), [f"{changed}=equal"])[0].silo_weights == "equal"
    assert all("are now called silo_weights" in str(warning.message) for warning in recwarn)
    assert recwarn
