"""`--threads auto`: every number is tried, the fastest is set, whatever it is."""

import pytest
import torch

from dynatree_lib import load_pair
from dynatree_lib.measure import clock as conditions


@pytest.fixture
def restored():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize("fastest", [1, 2, 3])
def test_the_fastest_number_is_set(monkeypatch, restored, fastest):
    monkeypatch.setattr(conditions, "available_cores", lambda: 3)
    monkeypatch.setattr(conditions, "TURNS", 2)
    now, calls = [0.0], [0]

    def clock():
        calls[0] += 1
        if calls[0] % 2 == 0:  # the second reading of a pair: after the work
            now[0] += 1.0 if torch.get_num_threads() == fastest else 5.0
        return now[0]

    found = conditions.choose_threads(load_pair("tiny"), clock)
    assert found == {count: 1.0 if count == fastest else 5.0 for count in (1, 2, 3)}
    assert torch.get_num_threads() == fastest
