import pytest

from e2e.checkpoints import job as script
from e2e.training.conftest import nursery  # noqa: F401
from e2e.training.gang import Gang


@pytest.fixture
def gang(nursery, tmp_path):  # noqa: F811
    """A function that makes jobs; whatever of them still runs at the end is killed."""
    made = []

    def make(*args, name="job", **options):
        job = Gang(nursery, tmp_path / name, script.__file__, args, **options)
        job.root.mkdir(exist_ok=True)
        made.append(job)
        return job

    yield make
    for job in made:
        if job.pids and not all(pid in nursery.poll() for pid in job.pids):
            job.kill()
