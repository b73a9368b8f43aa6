"""Entitlement: guarantees first, the surplus by weight, level by level; tiers, limits and past use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.scheduling import Project
from phalanx.core.scheduling.model.entitlement import (
    EntitlementTier,
    ProjectShare,
    QuotaLimit,
    entitlements,
    project_shares,
)

pytestmark = pytest.mark.unit

LAB = Project("lab", guaranteed_slots=8)
PART = Project("part", guaranteed_slots=2, parent="lab")


def shares(projects: tuple[Project, ...], demand: dict[str, int], capacity: int) -> list[float]:
    """The entitlement of every project, in the order in which they are given."""
    found = entitlements({one.name: one for one in projects}, demand, capacity)
    return [found[one.name] for one in projects]


class TestDivision:
    @pytest.mark.parametrize(
        ("first", "second", "demand", "divided"),
        [
            ({}, {}, (20, 20), (6, 6)),
            ({}, {}, (2, 20), (2, 10)),  # what one does not want is left to the other
            ({}, {}, (2, 3), (2, 3)),
            ({}, {}, (0, 20), (0, 12)),
            ({"weight": 3.0}, {}, (20, 20), (9, 3)),
            ({"weight": 3.0}, {}, (4, 20), (4, 8)),
            ({"guaranteed_slots": 8}, {}, (20, 20), (10, 2)),
            ({"guaranteed_slots": 8}, {}, (5, 20), (5, 7)),
            ({"guaranteed_slots": 8}, {"guaranteed_slots": 2}, (20, 20), (9, 3)),
            ({"max_slots": 4}, {}, (20, 20), (4, 8)),
            ({"guaranteed_slots": 8, "max_slots": 4}, {}, (20, 20), (4, 8)),
            # Of an unused guarantee of 8 slots, 3 may be lent: the other 5 stay free.
            ({"guaranteed_slots": 8, "lend_slots": 3}, {}, (0, 20), (0, 7)),
            ({"guaranteed_slots": 8, "lend_slots": 3}, {}, (7, 20), (7, 5)),
            ({"guaranteed_slots": 8, "lend_slots": 0}, {}, (2, 20), (2, 4)),
            ({"guaranteed_slots": 8, "lend_slots": 0}, {}, (20, 20), (10, 2)),
            ({"weight": 0.0}, {}, (20, 20), (0, 12)),
        ],
    )
    def test_of_two_projects_each_has_its_part_of_twelve_slots(
        self,
        first: dict[str, object],
        second: dict[str, object],
        demand: tuple[int, int],
        divided: tuple[float, float],
    ) -> None:
        projects = (Project("a", **first), Project("b", **second))
        found = shares(projects, dict(zip("ab", demand, strict=True)), 12)
        assert found == pytest.approx(divided, abs=1e-6)

    def test_a_parent_shares_what_it_got_among_its_parts(self) -> None:
        tree = (Project("a"), Project("x", parent="a"), Project("y", parent="a"), Project("b"))
        demand = {"x": 2, "y": 20, "b": 20}
        assert shares(tree, demand, 12) == [6, 2, 4, 6]
        # What the parent wants for itself counts at its level and not among its parts.
        assert shares(tree, {"a": 3, "b": 20}, 12) == [3, 0, 0, 9]
        # A guarantee of a part binds its parent only as far as the parent's own share goes.
        fixed = (tree[0], replace(tree[1], guaranteed_slots=5), *tree[2:])
        assert shares(fixed, {"x": 20, "y": 20, "b": 20}, 12) == [6, 5.5, 0.5, 6]

    def test_an_unknown_parent_is_none(self) -> None:
        tree = (Project("a", parent="gone"), Project("b"))
        assert shares(tree, {"a": 9, "b": 9}, 12) == [6, 6]

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 6),
                st.sampled_from([0.5, 1.0, 3.0]),
                st.none() | st.integers(0, 12),
                st.integers(0, 15),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def test_nothing_is_given_twice_and_nothing_is_withheld(
        self, facts: list[tuple[int, float, int | None, int]]
    ) -> None:
        capacity = 30
        projects = tuple(
            Project(f"p{i}", guaranteed_slots=sure, weight=weight, max_slots=most)
            for i, (sure, weight, most, _) in enumerate(facts)
        )
        wanted = {f"p{i}": demand for i, (*_, demand) in enumerate(facts)}
        found = shares(projects, wanted, capacity)
        tops = [
            min(wanted[one.name], wanted[one.name] if one.max_slots is None else one.max_slots)
            for one in projects
        ]
        for got, top, one in zip(found, tops, projects, strict=True):
            assert min(top, one.guaranteed_slots) - 1e-6 <= got <= top + 1e-6
        assert sum(found) == pytest.approx(min(capacity, sum(tops)), abs=1e-6)
        # Of two that want more, the one with less surplus by weight could not be given any of the other's.
        level = [
            (got - min(top, one.guaranteed_slots)) / one.weight
            for got, top, one in zip(found, tops, projects, strict=True)
            if got < top - 1e-6
        ]
        assert all(surplus == pytest.approx(max(level), abs=1e-6) for surplus in level)


class TestTiers:
    SHARE = ProjectShare(PART, 6.0, (LAB,))

    @pytest.mark.parametrize(
        ("used", "wanted", "tier"),
        [
            ({}, 2, EntitlementTier.GUARANTEED),
            ({"lab": 3}, 5, EntitlementTier.GUARANTEED),  # by the guarantee above
            ({"lab": 4}, 5, EntitlementTier.SHARED),
            ({"lab": 9, "part": 1}, 1, EntitlementTier.GUARANTEED),
            ({"lab": 9, "part": 1}, 5, EntitlementTier.SHARED),
            ({"lab": 9, "part": 1}, 6, EntitlementTier.BORROWED),
        ],
    )
    def test_a_request_is_in_the_first_tier_that_holds_it(
        self, used: dict[str, int], wanted: int, tier: EntitlementTier
    ) -> None:
        assert self.SHARE.tier(used, wanted) is tier

    @pytest.mark.parametrize(
        ("against", "guaranteed"), [((), True), (("lab",), False), (("part",), True)]
    )
    def test_a_guarantee_that_both_share_settles_nothing(
        self, against: tuple[str, ...], guaranteed: bool
    ) -> None:
        assert self.SHARE.is_guaranteed({"lab": 3, "part": 1}, 5, against) is guaranteed


class TestFairShare:
    @pytest.mark.parametrize(
        ("facts", "used", "over"),
        [
            ({}, 5, 5),
            ({"guaranteed_slots": 2}, 5, 3),
            ({"guaranteed_slots": 9}, 5, 0),
            ({"weight": 2.0}, 5, 2),
            ({"guaranteed_slots": 2, "past_slots": 1.5}, 5, 4),
            ({"guaranteed_slots": 9, "past_slots": 5.5}, 5, 1),
        ],
    )
    def test_use_above_a_guarantee_counts_by_weight(
        self, facts: dict[str, float], used: int, over: int
    ) -> None:
        assert ProjectShare(Project("p", **facts), 0.0).over_guarantee({"p": used}) == (over,)

    def test_the_widest_project_comes_first(self) -> None:
        share = ProjectShare(PART, 0.0, (LAB, Project("all")))
        assert share.over_guarantee({"part": 4, "lab": 9, "all": 30}) == (30, 1, 2)

    def test_past_use_of_parts_counts_for_those_above(self) -> None:
        tree = {
            one.name: one
            for one in (
                Project("all", past_slots=1.0),
                Project("mid", parent="all", past_slots=2.0),
                Project("low", parent="mid", past_slots=4.0),
                Project("other", past_slots=8.0),
            )
        }
        found = project_shares(tree, {}, {"low": 3, "other": 4}, 10)
        assert {name: one.project.past_slots for name, one in found.items()} == {
            "all": 7.0,
            "mid": 6.0,
            "low": 4.0,
            "other": 8.0,
        }
        assert [one.past_slots for one in found["low"].lineage] == [4.0, 6.0, 7.0]
        assert [found[name].entitled for name in ("all", "mid", "low", "other")] == [3, 3, 3, 4]

    def test_what_is_held_is_wanted_too(self) -> None:
        tree = {"a": Project("a"), "b": Project("b")}
        found = project_shares(tree, {"a": 4}, {"a": 2, "b": 20}, 12)
        assert (found["a"].entitled, found["b"].entitled) == (6, 6)
        assert project_shares({}, {"a": 4}, {}, 12) == {}


class TestLimits:
    @pytest.mark.parametrize(
        ("part", "lab", "limit"),
        [
            ({}, {}, None),
            ({"max_slots": 7}, {"max_slots": 12}, None),
            ({"max_slots": 6}, {"max_slots": 1}, ("part", "slots", 3, 6)),
            ({"max_slots": 7}, {"max_slots": 11}, ("lab", "slots", 8, 11)),
            ({"max_running": 2}, {}, ("part", "jobs", 2, 2)),
            ({"max_running": 3}, {"max_running": 5}, ("lab", "jobs", 5, 5)),
            ({"max_running": 3}, {"max_running": 6}, None),
            ({"max_running": 2, "max_slots": 6}, {}, ("part", "slots", 3, 6)),
        ],
    )
    def test_the_first_limit_that_four_more_slots_exceed(
        self,
        part: dict[str, int],
        lab: dict[str, int],
        limit: tuple[str, str, int, int] | None,
    ) -> None:
        share = ProjectShare(replace(PART, **part), 0.0, (replace(LAB, **lab),))
        found = share.over_limit({"part": 3, "lab": 8}, {"part": 2, "lab": 5}, 4)
        assert found == (None if limit is None else QuotaLimit(*limit))

    @pytest.mark.parametrize(
        ("part", "lab", "left"),
        [
            ({}, {}, None),
            ({"max_slots": 7}, {}, 4),
            ({"max_slots": 7}, {"max_slots": 10}, 2),
            ({}, {"max_slots": 5}, 0),
        ],
    )
    def test_the_tightest_limit_says_what_is_left(
        self, part: dict[str, int], lab: dict[str, int], left: int | None
    ) -> None:
        share = ProjectShare(replace(PART, **part), 0.0, (replace(LAB, **lab),))
        assert share.left({"part": 3, "lab": 8}) == left
