"""The extras: nothing of them is imported until they are asked for, and a missing one says so."""

import subprocess
import sys

import pytest

REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("module", ["leasedkeyq", "leasedkeyq.lanes", "leasedkeyq.telemetry"])
def test_nothing_is_imported_until_asked_for(module: str) -> None:
    program = f"""
import sys, {module}
names = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(names & {{"prometheus_client", "opentelemetry"}}))
"""
    assert python(program) == "[]\n"


@pytest.mark.parametrize(
    "extra, package", [("prometheus", "prometheus_client"), ("otel", "opentelemetry")]
)
def test_a_missing_extra_names_the_command(extra: str, package: str) -> None:
    program = f"""{REFUSE.format(package=package)}
try:
    import leasedkeyq.telemetry.{extra}
except ImportError as error:
    print(error)
"""
    assert f"pip install 'leasedkeyq[{extra}]'" in python(program)
