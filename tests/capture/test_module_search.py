"""Which module to watch where no optimizer steps: a guess first, again as the model grows, then the one called."""

from __future__ import annotations

from whystall.capture.module_search import ModuleSearch

S = 1_000_000_000


def test_a_guess_is_made_once_and_again_as_modules_are_made() -> None:
    search = ModuleSearch()
    search.heard(3, 3, 0)
    assert (search.next(S // 4), search.next(S // 2)) == ("guess", None)
    search.heard(5, 5, S)
    assert (search.next(S), search.next(S + 1)) == ("guess", None)


def test_where_the_guess_is_not_called_what_is_called_is_asked_for_once() -> None:
    search = ModuleSearch()
    search.heard(3, 3, 0)
    assert [search.next(at * S // 2) for at in range(6)] == ["guess", None, None, None, "by call", None]


def test_a_guess_that_could_not_be_made_is_made_later() -> None:
    search = ModuleSearch()
    search.heard(3, 3, 0)
    assert search.next(0) == "guess"
    search.later()
    assert search.next(1) == "guess"


def test_a_model_is_complete_once_nothing_is_added() -> None:
    search = ModuleSearch()
    assert not search.is_complete(9 * S)
    search.heard(1, 1, S)
    assert not search.is_complete(S + S // 4)
    assert search.is_complete(2 * S)


def test_models_made_again_and_again_are_followed_by_their_class() -> None:
    search = ModuleSearch()
    found = []
    for at in range(10):
        search.heard(made=30 * at + 3, living=3, now_ns=at * S // 4)
        found.append(search.next(at * S // 4))
    assert found.index("by kind") == 7
    assert found[8:] == [None, None]


def test_a_model_of_which_little_goes_away_is_not_made_anew() -> None:
    search = ModuleSearch()
    for at in range(10):
        search.heard(made=30 * at + 3, living=29 * at + 3, now_ns=at * S // 4)
    assert not search.makes_them_anew(10 * S // 4)
