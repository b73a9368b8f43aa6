"""`python -m bench.scheduler`."""

from bench.scheduler.run import main

raise SystemExit(main())
