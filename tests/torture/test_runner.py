"""The runner of the torture: what is split, added up and kept."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.torture import figures, runner
from tests.torture.__main__ import chosen, main
from tests.torture.figures import Figures, Times
from tests.torture.part import MOST_VIOLATIONS, Findings, Part, Trial
from tests.torture.parts import PARTS


def tries(trial: Trial) -> Findings:
    return Findings(tried=len(trial.seeds))


def part(run: Callable[[Trial], Findings] = tries) -> Part:
    return Part(
        name="tries",
        title="Something is tried",
        unit="tries",
        amounts={"memory": 100},
        slice={"memory": 1},
        wrong=("items lost",),
        run=run,
    )


@pytest.mark.parametrize("rounds, many", [(0, 3), (1, 3), (7, 3), (100, 8)])
def test_each_seed_is_in_one_stretch(rounds: int, many: int) -> None:
    stretches = list(runner.split(range(5, 5 + rounds), many))
    assert [seed for some in stretches for seed in some] == list(range(5, 5 + rounds))
    lengths = [len(some) for some in stretches]
    assert max(lengths) - min(lengths) <= 1


def test_findings_add_up_and_keep_their_zeros() -> None:
    one, other = Findings(tried=2), Findings(tried=3)
    one.counted["puts"] = 5
    other.counted["puts"] = 7
    one.wrong["items lost"] = other.wrong["items lost"] = 0
    one.time("to new hands", 0.5)
    other.time("to new hands", 0.25)
    other.violation("keys held twice", 17, "by two")
    both = one + other
    assert both.tried == 5
    assert both.counted == {"puts": 12}
    assert dict(both.wrong) == {"items lost": 0, "keys held twice": 1}
    assert both.seconds == {"to new hands": [0.5, 0.25]}
    assert both.violations == ["seed 17: keys held twice: by two"]


def test_violations_are_all_counted_and_the_first_told() -> None:
    found = Findings()
    for seed in range(50):
        found.violation("items lost", seed, "one")
    assert found.wrong["items lost"] == 50
    assert len(found.violations) == MOST_VIOLATIONS


def test_findings_pass_through_json() -> None:
    found = Findings(3, Counter(puts=1), Counter({"items lost": 0}), ["x"], {"t": [0.1]})
    assert runner.from_json(runner.to_json(found)) == found


def test_what_raises_is_a_finding(tmp_path: Path) -> None:
    def run(trial: Trial) -> Findings:
        raise RuntimeError(f"no {trial.engine}")

    found = runner.run_here(part(run), Trial("memory", range(3, 9), tmp_path))
    assert found.wrong == {"items lost": 0, runner.BROKEN: 1}
    assert "RuntimeError: no memory" in found.violations[0]
    assert found.violations[0].startswith("seed 3: ")


def test_a_process_that_dies_is_a_finding() -> None:
    # The processes look the part up by its name, and there is none: they end with an error.
    found = runner.run_part(part(), "memory", range(1, 2), jobs=2)
    assert found.tried == 0
    assert found.wrong[runner.BROKEN] == 1
    assert "KeyError: 'tries'" in found.violations[0]


def test_figures_are_kept(tmp_path: Path) -> None:
    seconds = {"t": figures.times([0.1] * 98 + [0.5, 0.9])}
    assert seconds["t"] == Times(100, 0.1, 0.9, 0.9)
    kept = Figures(
        "kills", "redis", 1, 10, 20, {"puts": 3}, {"items lost": 0}, [], seconds, 9, "", "", ""
    )
    figures.save(kept, tmp_path)
    assert figures.load(tmp_path) == [kept]
    assert kept.clean


def test_words_choose_parts_and_engines() -> None:
    everything = chosen([])
    assert {(part.name, engine) for part, engine in everything} == {
        (part.name, engine) for part in PARTS.values() for engine in part.amounts
    }
    assert {engine for _, engine in chosen(["sqlite"])} <= {"sqlite"}


def test_an_unknown_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    assert "there is no part or engine nonsense (--list shows them)" in capsys.readouterr().err
