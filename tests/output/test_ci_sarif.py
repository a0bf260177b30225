from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Unavailable
from memtopo.diagnostics import CODES
from memtopo.diagnostics.explanations import explanation
from memtopo.output import formats
from memtopo.rules.files import collect
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking, check
from tests.helpers.ci_forms import sarif, text
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_sarif_result_has_rule_level_help_and_location(checked: Checking) -> None:
    """Lines and columns count from 1, in characters."""
    run = sarif(text("sarif", checked({"specs/bad.yaml": BAD.replace("name: bad", "name: bad  # ä世😀")})))
    assert run["columnKind"] == "unicodeCodePoints"
    first, second = run["results"]
    assert (first["ruleId"], first["level"], second["level"]) == ("MT301", "error", "warning")
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "MT301"
    assert "help: write 2MiB or 4MiB, or 'round: up'" in first["message"]["text"].splitlines()
    (location,) = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "specs/bad.yaml", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 4, "startColumn": 31, "endLine": 4, "endColumn": 35},
    }


def test_sarif_columns_count_code_points(checked: Checking) -> None:
    """They count neither bytes nor UTF-16 code units."""
    run = sarif(text("sarif", checked({"x.yaml": GOOD.replace("name: good", 'name: good\n"😀": {ä: 1}')})))
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["endColumn"] == 4


def test_sarif_logs_of_all_bad_specs_fit_the_schema(folder: Path) -> None:
    """Every rule that a log names is explained."""
    run = sarif(text("sarif", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2, peers=False)})))
    rules = run["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} == {result["ruleId"] for result in run["results"]}
    of_changes = {"MT806", "MT807", "MT808", "MT810", "MT813", "MT507"}  # of two specs, or of a plan
    of_machines = {"MT614", "MT615", "MT718"}  # of nodes with fabric, and of GPUs on which multicast was never tried
    assert {code for code in CODES if code >= "MT1"} - of_changes - of_machines <= {rule["id"] for rule in rules}
    for rule in rules:
        assert rule["shortDescription"]["text"] == explanation(rule["id"]).title
        assert len(rule["help"]["text"]) > 40
        assert "```yaml" in rule["help"]["markdown"]
        assert "`" not in rule["help"]["text"]


def test_labels_are_related_locations_with_their_text(checked: Checking) -> None:
    run = sarif(text("sarif", checked({"x.yaml": GOOD + "name: again\n"})))
    (result,) = run["results"]
    (related,) = result["relatedLocations"]
    assert related["message"]["text"] == "first given here"
    assert related["physicalLocation"]["region"]["startLine"] == 2


def test_sarif_result_of_a_whole_file_is_at_its_first_line(checked: Checking, folder: Path) -> None:
    """Code scanning requires a line."""
    found = check(collect(["nowhere.yaml"]), {"one": invented(1)})
    (result,) = sarif(text("sarif", found))["results"]
    assert result["ruleId"] == "MT001"
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("a b%.yaml", "a%20b%25.yaml"),
        ("ä#.yaml", "%C3%A4%23.yaml"),
        ("-", "-"),
        ("a:b.yaml", "a%3Ab.yaml"),
        ("a/../b.yaml", "b.yaml"),
        ("\udcff.yaml", "%FF.yaml"),
    ],
)
def test_sarif_names_are_relative_uris(folder: Path, name: str, uri: str) -> None:
    (folder / "a").mkdir()
    (result,) = sarif(text("sarif", check(collect([f"./{name}"]), {"one": invented(1)})))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": uri, "uriBaseId": "%SRCROOT%"}


def test_sarif_names_of_files_outside_the_repository_are_absolute(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "x.yaml"
    (result,) = sarif(text("sarif", check(collect([str(other)]), {"one": invented(1)})))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": f"file://{other}"}


@pytest.mark.parametrize("variable", ["GITHUB_WORKSPACE", "CI_PROJECT_DIR"])
def test_sarif_names_are_relative_to_the_checkout_of_the_ci(
    checked: Checking, folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The working directory does not matter."""
    found = checked({"specs/x.yaml": BAD})
    (folder / "specs").mkdir(exist_ok=True)
    monkeypatch.chdir(folder / "specs")
    monkeypatch.setenv(variable, str(folder))
    found = check(collect(["x.yaml"]), {"one": invented(1)})
    for result in sarif(text("sarif", found))["results"]:
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "specs/x.yaml"


def test_fingerprints_are_unique_and_survive_inserted_lines(checked: Checking) -> None:
    before = sarif(text("sarif", checked({"x.yaml": BAD})))["results"]
    after = sarif(text("sarif", checked({"x.yaml": "# new\n\n" + BAD})))["results"]
    marks = [result["partialFingerprints"]["memtopoFault/v1"] for result in before]
    assert marks == [result["partialFingerprints"]["memtopoFault/v1"] for result in after]
    assert len(set(marks)) == len(marks) == 2
    other = sarif(text("sarif", checked({"x.yaml": BAD.replace("3MiB", "5MiB")})))["results"]  # in its message, too
    assert marks == [result["partialFingerprints"]["memtopoFault/v1"] for result in other]


def test_a_fingerprint_stays_when_faults_of_other_entries_and_files_are_corrected(checked: Checking) -> None:
    two = BAD + "  next: {location: gpu0, size: 3MiB}\n"
    every, fewer, alone = (
        [result["partialFingerprints"]["memtopoFault/v1"] for result in sarif(text("sarif", found))["results"]]
        for found in (
            checked({"x.yaml": two, "y.yaml": BAD}),
            checked({"x.yaml": two.replace("3MiB", "2MiB", 1), "y.yaml": BAD}),
            checked({"y.yaml": BAD}),
        )
    )
    assert fewer[-4:] == every[-4:]
    assert alone == every[-2:]


def test_a_fingerprint_without_a_place_in_the_spec_is_of_the_message(checked: Checking) -> None:
    """It stays when another fault without one is corrected."""
    both, one = (
        [result["partialFingerprints"]["memtopoFault/v1"] for result in sarif(text("sarif", found))["results"]]
        for found in (checked({"x.yaml": f"{GOOD}? [k]\n: v\n?\n: w\n"}), checked({"x.yaml": f"{GOOD}?\n: w\n"}))
    )
    assert len(both) == 2
    assert both[1:] == one


def test_equal_diagnostics_at_different_positions_have_different_fingerprints(checked: Checking) -> None:
    run = sarif(text("sarif", checked({"x.yaml": GOOD + "name: a\nname: b\nname: c\n"})))
    marks = [result["partialFingerprints"]["memtopoFault/v1"] for result in run["results"]]
    assert len(set(marks)) == len(marks) == 3


def test_sarif_result_of_several_machines_names_them_if_not_all(checked: Checking) -> None:
    run = sarif(text("sarif", checked({"x.yaml": TWO_GPUS, "y.yaml": BAD}, "h100x1", "h200x2")))
    assert [result["ruleId"] for result in run["results"]] == ["MT401", "MT301", "MT501"]
    assert "note: only on h100x1" in run["results"][0]["message"]["text"]
    assert "only on" not in run["results"][1]["message"]["text"]


def test_sarif_log_has_success_and_exit_status(checked: Checking) -> None:
    for spec, strict, status in ((GOOD, True, 0), (BAD, False, 1), (WARNED, False, 0), (WARNED, True, 1)):
        (done,) = sarif(text("sarif", replace(checked({"x.yaml": spec}), strict=strict)))["invocations"]
        assert done == {"executionSuccessful": True, "exitCode": status}
    run = sarif("\n".join(formats.failure("sarif", Unavailable("no GPU", hint="buy one"))))
    (failed,) = run["invocations"]
    assert (failed["executionSuccessful"], failed["exitCode"], run["results"]) == (False, 3, [])
    assert failed["toolExecutionNotifications"][0]["message"]["text"] == "no GPU\nhint: buy one"
