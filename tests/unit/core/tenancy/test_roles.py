"""Roles, permissions and the decision about one caller."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.contract.access import Scope, covers
from phalanx.core.tenancy.principals import (
    HOME_USER,
    WHOLE,
    Caller,
    Principal,
    actor_of,
    allowed,
    projects_with,
)
from phalanx.core.tenancy.roles import (
    OF_ALL,
    PERMISSIONS,
    PLATFORM_WIDE,
    SCOPES,
    Permission,
    UserRole,
)
from phalanx.errors import PermissionDenied

pytestmark = pytest.mark.unit
PLACES = st.sampled_from([WHOLE, "vision", "text"])
PRINCIPALS = st.builds(
    Principal, st.just("user:ada"), st.dictionaries(PLACES, st.sampled_from(UserRole))
)
NEEDED = st.sampled_from(Permission)


def test_each_role_has_what_the_lesser_one_has_and_every_permission_a_scope() -> None:
    sizes = [PERMISSIONS[one] for one in UserRole]
    assert all(less < more for less, more in itertools.pairwise(sizes))
    assert PERMISSIONS[UserRole.ADMIN] == set(Permission) == set(SCOPES)


@given(PRINCIPALS, NEEDED, st.sampled_from(["vision", "text", None]))
def test_only_a_role_of_the_place_or_of_the_whole_counts(
    one: Principal, permission: Permission, project: str | None
) -> None:
    places = {WHOLE} if project is None or permission in PLATFORM_WIDE else {WHOLE, project}
    roles = [role for place, role in one.roles.items() if place in places]
    expected = permission in OF_ALL or any(permission in PERMISSIONS[role] for role in roles)
    assert allowed(one, permission, project) == expected


@given(PRINCIPALS, NEEDED, st.sampled_from(UserRole), PLACES)
def test_a_further_role_takes_nothing_away_and_none_gives_nothing(
    one: Principal, permission: Permission, role: UserRole, place: str
) -> None:
    more = Principal(one.id, {place: role} | dict(one.roles))
    assert not allowed(one, permission, "vision") or allowed(more, permission, "vision")
    assert allowed(Principal("user:x"), permission, "vision") == (permission in OF_ALL)


@given(PRINCIPALS, NEEDED)
def test_lists_hold_exactly_the_projects_that_single_requests_open(
    one: Principal, permission: Permission
) -> None:
    found = projects_with(one, permission)
    for project in ("vision", "text"):
        assert (found is None or project in found) == allowed(one, permission, project)


@given(PRINCIPALS, NEEDED, st.sampled_from(Scope))
def test_a_token_may_never_do_more_than_its_owner(
    one: Principal, permission: Permission, scope: Scope
) -> None:
    caller = Caller("t", (scope,), one)
    expected = allowed(one, permission, "text") and covers([scope], SCOPES[permission])
    assert caller.may(permission, "text") == expected
    found = caller.projects(permission)
    assert (found is None or "text" in found) == expected


def test_the_owner_of_a_job_may_change_it_as_a_member() -> None:
    for role, place, may in (
        (UserRole.MEMBER, "vision", True),
        (UserRole.MEMBER, "text", False),
        (UserRole.VIEWER, "vision", False),
        (UserRole.MEMBER, WHOLE, True),
    ):
        ada = Principal("user:ada", {place: role})
        assert allowed(ada, Permission.JOBS_CHANGE, "vision", "ada") is may
        assert not allowed(ada, Permission.JOBS_CHANGE, "vision", "bob")
    robot = Principal("service:ada", {"vision": UserRole.MEMBER})
    assert not allowed(robot, Permission.JOBS_CHANGE, "vision", "ada")


def test_owners_and_actors_name_the_same_principal() -> None:
    for id in ("user:ada", "service:ci"):
        assert actor_of(Principal(id).owner) == id
    home = Caller("admin", (Scope.ADMIN,), HOME_USER)
    assert home.owner_of("login") == "login" and actor_of("") == HOME_USER.id
    ada = Caller("t", (Scope.SUBMIT,), Principal("user:ada", {"vision": UserRole.MEMBER}))
    assert ada.owner_of("bob") == "ada"
    ada.require(Permission.JOBS_SUBMIT, "vision")
    with pytest.raises(PermissionDenied, match="project 'text'"):
        ada.require(Permission.JOBS_SUBMIT, "text")
