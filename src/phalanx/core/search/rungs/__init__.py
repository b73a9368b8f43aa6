"""Rules about which trials go on, and the choice of what a study does next.

`brackets` says where a trial begins; `promotion`, `stopping` and `population` decide at a rung;
`planning` fills free places after every event: promotions first, then forks, then new trials.
"""
