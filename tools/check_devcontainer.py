"""Check that the devcontainer files agree with each other.

devcontainer.json names a compose file, a service in it and commands; the compose file names a
Dockerfile, services and health checks. None of that is seen by a schema.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".devcontainer"


def check_json(dev: dict[str, Any], services: dict[str, Any]) -> Iterator[str]:
    service = dev["service"]
    if service not in services:
        yield f"devcontainer.json: there is no service {service!r} in the compose file"
        return
    mounts = [str(volume).split(":") for volume in services[service].get("volumes", [])]
    if not any(
        (HOME / mount[0]).resolve() == ROOT and mount[1] == dev["workspaceFolder"]
        for mount in mounts
    ):
        yield "devcontainer.json: the repository is not mounted at workspaceFolder"
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"\bmake ([a-z-]+)", dev["postCreateCommand"]):
        if target not in targets:
            yield f"devcontainer.json: the Makefile has no target {target!r}"
    venv = services[service]["environment"]["VENV"]
    interpreter = dev["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    if f"/{venv}/bin/python" not in interpreter:
        yield f"devcontainer.json: the interpreter is not the one in {venv}"


def check_compose(services: dict[str, Any], user: str) -> Iterator[str]:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            if other not in services:
                yield f"compose.yaml: {name} depends on {other!r}, which is not there"
            elif how.get("condition") == "service_healthy" and "healthcheck" not in services[other]:
                yield f"compose.yaml: {name} waits for {other!r}, which has no health check"
        if "build" in service:
            context = HOME / service["build"]["context"]
            dockerfile = context / service["build"].get("dockerfile", "Dockerfile")
            if not dockerfile.is_file():
                yield f"compose.yaml: {name} is built from {dockerfile}, which is not there"
            elif not re.search(rf"^USER {user}$", dockerfile.read_text(), re.MULTILINE):
                yield f"{dockerfile.name}: it does not end as user {user!r}"
        for variable, value in service.get("environment", {}).items():
            url = re.match(r"\w+://(?:[^@]*@)?([^:/]+)", str(value))
            if variable.endswith("_URL") and (url is None or url[1] not in services):
                yield f"compose.yaml: {variable} of {name} does not point at a service"


def main() -> int:
    dev: dict[str, Any] = json.loads((HOME / "devcontainer.json").read_text())
    compose_file = HOME / dev["dockerComposeFile"]
    if not compose_file.is_file():
        print(f"devcontainer.json: {dev['dockerComposeFile']} is not there")
        return 1
    services: dict[str, Any] = yaml.safe_load(compose_file.read_text())["services"]
    problems = [*check_json(dev, services), *check_compose(services, dev["remoteUser"])]
    for problem in problems:
        print(problem)
    if not problems:
        print("ok -- devcontainer.json, compose.yaml and Dockerfile agree")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
