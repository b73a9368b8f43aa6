import pytest

from e2e.training.gang import HERE, Gang, Nursery, killed_at_end


@pytest.fixture(scope="package")
def nursery():
    warm = Nursery()
    yield warm
    warm.close()


@pytest.fixture
def gang(nursery, tmp_path):
    """A function that makes jobs; whatever of them still runs at the end is killed."""
    with killed_at_end(nursery) as begun:

        def make(*args, name="job", **options):
            return begun(Gang(nursery, tmp_path / name, HERE / "job.py", args, **options))

        yield make


@pytest.fixture(scope="package")
def reference(nursery, tmp_path_factory):
    """Digest of the weights and the optimizer of an uninterrupted run; each is trained once."""
    known = {}

    def of(*args, world=3):
        if (args, world) not in known:
            root = tmp_path_factory.mktemp("reference")
            job = Gang(nursery, root, HERE / "job.py", args, world=world, every="1000 steps")
            known[args, world] = job.start().finish().result
        return known[args, world]

    return of
