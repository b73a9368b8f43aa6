"""`checkpoint save`: what the command says of each end of a request, and its exit codes."""

from types import SimpleNamespace

import pytest
import typer

from phalanx.cli.verbs import checkpoints
from phalanx.errors import CheckpointNotFound
from phalanx.schemas.api.telemetry import RequestTicket, SavesView, SaveView

pytestmark = pytest.mark.unit
TICKET = RequestTicket(attempt=1, generation=0, request=2)


def save(request=2, generation=0, **more):
    return SaveView(attempt=1, generation=generation, request=request, step=7, **more)


def client(*views):
    left = iter(views)
    return SimpleNamespace(saves=lambda num, **rest: next(left))


def view(*saves, generation=0):
    return SavesView(saves=list(saves), attempt=1, generation=generation)


def test_it_waits_for_the_checkpoint_of_its_own_request(capsys):
    done = save(path="/c/step-7", saved_step=7)
    views = (view(save(1, path="/c/step-5")), view(save()), view(done))
    assert checkpoints._saved(client(*views), 1, TICKET, 60.0) == done
    assert "j-1 saves its step 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (view(save(failed=True)), "could not save at step 7"),
        (view(generation=1), "ended or restarted before they saved"),
    ],
)
def test_a_save_that_cannot_come_is_an_error(last, said):
    with pytest.raises(CheckpointNotFound, match=said) as error:
        checkpoints._saved(client(last), 1, TICKET, 60.0)
    assert error.value.exit_code == 102


def test_a_wait_that_is_over_says_which_scripts_can_save(capsys):
    with pytest.raises(typer.Exit) as stopped:
        checkpoints._saved(client(view(), view()), 1, TICKET, 40.0)
    assert stopped.value.exit_code == 101
    assert "only scripts with the loader of phalanx.train" in capsys.readouterr().err
