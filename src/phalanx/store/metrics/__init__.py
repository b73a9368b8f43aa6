"""The metric store: what ranks report, as chunks of columns, and the roll-ups that curves are read from.

`arrivals` appends reports and reads them in their order; `series` has the rows of roll-ups; `folding` joins
the chunks of reports and brings the roll-ups up to date; `curves` answers queries from roll-ups, and from
chunks where the roll-ups are not fine enough.
"""
