"""What is given out to install fedilc is well-formed, and its command lines are those of the program."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fedilc import __version__
from fedilc.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
CHART = DEPLOY / "helm" / "fedilc"
SCRIPTS = Path(sys.executable).parent
ACTION = re.compile(r"\{\{-? (.*?) -?\}\}")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def tool(name: str) -> str:
    """Return where a development tool is; skip if it is not installed."""
    found = SCRIPTS / name
    if not found.exists():
        pytest.skip(f"needs {name}, which pip install 'fedilc[dev]' brings")
    return str(found)


def rendered(role: str) -> list[dict[str, Any]]:
    """Return the objects of the chart, by the part of Helm's language that its templates use."""
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | {"role": role}
    known = {"Values": values, "Release": {"Name": "study"}}

    def value(path: str) -> Any:
        return reduce(lambda place, key: place[key], path.strip(".").split("."), known)

    found: list[dict[str, Any]] = []
    for template in sorted((CHART / "templates").glob("*.yaml")):
        lines, shown = [], [True]
        for line in template.read_text().splitlines():
            action = ACTION.fullmatch(line.strip())
            if action is not None and action[1].startswith("if eq "):
                _, _, path, literal = action[1].split()
                shown.append(shown[-1] and str(value(path)) == literal.strip('"'))
            elif action is not None and action[1] == "end":
                shown.pop()
            elif shown[-1]:
                lines.append(ACTION.sub(lambda one: str(value(one[1])), line))
        assert shown == [True], template
        found += [one for one in yaml.safe_load_all("\n".join(lines)) if one]
    return found


def accepts(words: list[str]) -> None:
    """Fail if the program does not take a command line."""
    command = typer.main.get_command(app).commands[words[0]]
    command.make_context(words[0], [str(word) for word in words[1:]]).close()


def test_the_container_file_is_linted() -> None:
    done = subprocess.run([tool("hadolint"), DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_container_runs_as_a_user_from_the_wheel_with_the_tested_versions() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    last = text.rpartition("FROM ")[2]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert "COPY constraints.txt dist/fedilc-*.whl" in text
    extras = re.findall(r"\[([\w,]+)\]", text)[0].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("compose-spec", "docs/deploy/compose.yaml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/question.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_a_file_has_the_form_that_its_schema_describes(schema: str, file: str) -> None:
    words = [tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", ROOT / file]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_yaml_has_no_repeated_key() -> None:
    files = [*DEPLOY.glob("*.y*ml"), *CHART.glob("*.yaml"), *(ROOT / ".github").rglob("*.yml")]
    rules = "{rules: {key-duplicates: enable, indentation: {indent-sequences: consistent}}}"
    done = subprocess.run([tool("yamllint"), "-s", "-d", rules, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_services_of_the_compose_file_are_read_only_and_have_no_privilege() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"coordinator", "north"}
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        accepts(service["command"])


@pytest.mark.parametrize("role", ["coordinator", "silo"])
def test_the_chart_makes_valid_objects_of_one_role(role: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="has the schemas of Kubernetes")
    objects = rendered(role)
    assert [one["kind"] for one in objects] == {
        "coordinator": ["Service", "StatefulSet"],
        "silo": ["StatefulSet"],
    }[role]
    for one in objects:
        kubernetes.validate(one, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize("role", ["coordinator", "silo"])
def test_containers_of_the_chart_are_read_only_and_start_a_command_of_the_program(role: str) -> None:
    pod = rendered(role)[-1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    accepts(container["args"])
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claims = {one["metadata"]["name"] for one in rendered(role)[-1]["spec"]["volumeClaimTemplates"]}
    assert mounted == claims | {volume["name"] for volume in pod["volumes"]}


def test_a_chart_of_an_unknown_role_is_empty() -> None:
    assert rendered("printer") == []


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = yaml.safe_load((DEPLOY / "conda" / "meta.yaml").read_text())
    needed = [
        re.split(r"\s*#", line)[0].replace("pytorch", "torch") for line in recipe["requirements"]["run"]
    ]
    package = [f"python {PROJECT['requires-python']}", *PROJECT["dependencies"]]
    assert {line.replace(" ", "") for line in needed} == {line.replace(" ", "") for line in package}
    assert __version__.startswith(recipe["package"]["version"])
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == recipe["package"]["version"]
